package zones

import (
	"errors"
	"fmt"
	"strings"

	"github.com/neardns/neardns/fleet/zones/rfc2136"
)

// ReadKey reads a TSIG key from the data of a DNSZone's Secret. An error names the field of the Secret and never contains the key's secret.
func ReadKey(data map[string][]byte) (rfc2136.Key, error) {
	text := func(key string) string { return strings.TrimSpace(string(data[key])) }
	k := rfc2136.Key{Name: text("name"), Algorithm: strings.ToLower(text("algorithm")), Secret: text("secret")}
	if k.Algorithm == "" {
		k.Algorithm = "hmac-sha256"
	}
	for _, must := range []struct{ name, value string }{{"name", k.Name}, {"secret", k.Secret}} {
		if must.value == "" {
			return k, fmt.Errorf("%s is missing or empty; the Secret has the keys name, secret and algorithm, "+
				"as tsig-keygen or keymgr print them", must.name)
		}
	}
	if strings.ContainsFunc(k.Name, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == ';' || r == '\\' }) {
		return k, errors.New("name is no DNS name")
	}
	k.Name = Canonical(k.Name)
	if err := k.Validate(); err != nil {
		return k, err
	}
	return k, nil
}
