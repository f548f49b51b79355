package zones

import (
	"strings"
	"testing"
)

// TestReadKey has Secrets, and what is wrong with them. No error shows the value.
func TestReadKey(t *testing.T) {
	const secret = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"
	for name, c := range map[string]struct {
		data map[string]string
		want string // of the error; empty: none
	}{
		"whole":              {map[string]string{"name": "Key.example", "algorithm": "HMAC-SHA512", "secret": secret}, ""},
		"without algorithm":  {map[string]string{"name": "key", "secret": secret + "\n"}, ""},
		"nothing":            {nil, "name is missing"},
		"no name":            {map[string]string{"secret": secret}, "name is missing"},
		"a name with spaces": {map[string]string{"name": "a b", "secret": secret}, "name is no DNS name"},
		"no secret":          {map[string]string{"name": "key"}, "secret is missing"},
		"not base64":         {map[string]string{"name": "key", "secret": "hunter2!"}, "no base64"},
		"md5":                {map[string]string{"name": "key", "algorithm": "hmac-md5", "secret": secret}, "is none of"},
	} {
		data := map[string][]byte{}
		for k, v := range c.data {
			data[k] = []byte(v)
		}
		key, err := ReadKey(data)
		switch {
		case c.want == "" && (err != nil || !strings.HasSuffix(key.Name, ".") || key.Secret != secret || strings.ToLower(key.Algorithm) != key.Algorithm):
			t.Errorf("%s: %+v, %v", name, key, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v", name, err)
		case err != nil && (strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "hunter2")):
			t.Errorf("%s: the error tells the secret: %v", name, err)
		}
	}
}
