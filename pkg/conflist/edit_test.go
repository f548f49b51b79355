package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/neardns/neardns/pkg/testutil"
)

const testEntry = `{"type":"neardns","redirects":[{"clusterDNS":"10.96.0.10","steering":"169.254.20.11"}]}`

const flannel = `{
  "name": "cbr0",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "flannel",
      "delegate": {"hairpinMode": true, "mtu": 1450.0}
    },
    {
      "type": "portmap",
      "capabilities": {"portMappings": true}
    }
  ]
}
`

const flannelWithOurs = `{
  "name": "cbr0",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "flannel",
      "delegate": {"hairpinMode": true, "mtu": 1450.0}
    },
    {
      "type": "portmap",
      "capabilities": {"portMappings": true}
    },
    {
      "type": "neardns",
      "redirects": [
        {
          "clusterDNS": "10.96.0.10",
          "steering": "169.254.20.11"
        }
      ]
    }
  ]
}
`

func TestAppend(t *testing.T) {
	tests := map[string]struct{ list, want string }{
		"after the last, indented like its neighbours": {flannel, flannelWithOurs},
		"nothing to do":               {flannelWithOurs, flannelWithOurs},
		"compact list, compact entry": {`{"name":"n","plugins":[{"type":"ptp"}]}`, `{"name":"n","plugins":[{"type":"ptp"},` + testEntry + `]}`},
		"big numbers, odd keys and key order": {
			`{"z":1,"plugins":[{"type":"a","n":12345678901234567890.10}],"name":"n","A":1e300}`,
			`{"z":1,"plugins":[{"type":"a","n":12345678901234567890.10},` + testEntry + `],"name":"n","A":1e300}`,
		},
		"tabs": {
			"{\n\t\"name\": \"n\",\n\t\"plugins\": [\n\t\t{\"type\": \"a\"}\n\t]\n}",
			"{\n\t\"name\": \"n\",\n\t\"plugins\": [\n\t\t{\"type\": \"a\"},\n\t\t{\n\t\t\t\"type\": \"neardns\",\n\t\t\t\"redirects\": [\n\t\t\t\t{\n\t\t\t\t\t\"clusterDNS\": \"10.96.0.10\",\n\t\t\t\t\t\"steering\": \"169.254.20.11\"\n\t\t\t\t}\n\t\t\t]\n\t\t}\n\t]\n}",
		},
		"ours, old, in the middle": {
			`{"name":"n","plugins":[{"type":"a"}, {"type":"neardns"}, {"type":"b"}]}`,
			`{"name":"n","plugins":[{"type":"a"}, {"type":"b"}, ` + testEntry + `]}`,
		},
		"ours first": {
			`{"name":"n","plugins":[ {"type":"neardns"} , {"type":"b"} ]}`,
			`{"name":"n","plugins":[ {"type":"b"}, ` + testEntry + ` ]}`,
		},
		"ours last but out of date": {
			`{"name":"n","plugins":[{"type":"a"},{"type":"neardns","redirects":["10.0.0.10"]}]}`,
			`{"name":"n","plugins":[{"type":"a"},` + testEntry + `]}`,
		},
		"ours last and right, but twice": {
			`{"name":"n","plugins":[{"type":"a"},` + testEntry + `,` + testEntry + `]}`,
			`{"name":"n","plugins":[{"type":"a"},` + testEntry + `]}`,
		},
		"ours last and right in other white space": {
			`{"name":"n","plugins":[{"type":"a"}, { "type": "neardns", "redirects":[{"clusterDNS":"10.96.0.10", "steering":"169.254.20.11"}] }]}`,
			`{"name":"n","plugins":[{"type":"a"}, { "type": "neardns", "redirects":[{"clusterDNS":"10.96.0.10", "steering":"169.254.20.11"}] }]}`,
		},
		"type of ours in another spelling of the key": {
			`{"name":"n","plugins":[{"type":"a"},{"Type":"neardns"}]}`,
			`{"name":"n","plugins":[{"type":"a"},` + testEntry + `]}`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Append([]byte(tc.list), []byte(testEntry))
			testutil.Must(t, err)
			testutil.Equal(t, "Append", tc.want, string(got))
			again, err := Append(got, []byte(testEntry))
			if err != nil || !bytes.Equal(again, got) {
				t.Errorf("second Append changed the list (%v):\n%s", err, again)
			}
			if _, err := libcni.NetworkConfFromBytes(got); err != nil {
				t.Errorf("libcni does not read it: %v", err)
			}
		})
	}
}

func TestDrop(t *testing.T) {
	tests := map[string]struct{ list, want string }{
		"what Append did": {flannelWithOurs, flannel},
		"none":            {flannel, flannel},
		"each of several": {
			`{"name":"n","plugins":[{"type":"neardns"},{"type":"a"},{"type":"neardns"},{"type":"b"},{"type":"neardns"}]}`,
			`{"name":"n","plugins":[{"type":"a"},{"type":"b"}]}`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Drop([]byte(tc.list))
			testutil.Must(t, err)
			testutil.Equal(t, "Drop", tc.want, string(got))
		})
	}
	if _, err := Drop([]byte(`{"name":"n","plugins":[{"type":"neardns"}]}`)); !errors.Is(err, ErrNoMain) {
		t.Errorf("list of ours alone: %v, want ErrNoMain", err)
	}
}

func TestFromPlugin(t *testing.T) {
	conf := "{\n  \"cniVersion\": \"0.4.0\",\n  \"name\": \"mynet\",\n  \"type\": \"bridge\",\n  \"mtu\": 1.50e3\n}\n"
	want := `{
  "cniVersion": "0.4.0",
  "name": "mynet",
  "plugins": [
    {
      "cniVersion": "0.4.0",
      "name": "mynet",
      "type": "bridge",
      "mtu": 1.50e3
    }
  ]
}
`
	got, err := FromPlugin([]byte(conf))
	testutil.Must(t, err)
	testutil.Equal(t, "FromPlugin", want, string(got))
	for _, form := range []string{conf, strings.TrimSpace(conf), "\n\t" + conf + "\r\n", strings.ReplaceAll(conf, "\n", "\r\n"), strings.ReplaceAll(conf, "\n", "")} {
		list, err := FromPlugin([]byte(form))
		testutil.Must(t, err)
		if back, made := ToPlugin(list); !made || string(back) != form {
			t.Errorf("back from a list (%v): %q, want %q", made, back, form)
		}
		with, err := Append(list, []byte(`{"type":"neardns","redirects":["10.96.0.10"]}`))
		testutil.Must(t, err)
		if _, made := ToPlugin(with); made {
			t.Error("a list with two plugins was made of one")
		}
		without, err := Drop(with)
		if back, made := ToPlugin(without); err != nil || !made || string(back) != form {
			t.Errorf("back after Append and Drop (%v, %v): %q, want %q", made, err, back, form)
		}
	}
	for _, own := range []string{
		`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"}]}`,   // not in our form
		strings.Replace(want, "1.50e3", "1500", 1) + "x",               // no list
		strings.Replace(want, `"name": "mynet"`, `"name": "other"`, 1), // renamed
	} {
		if _, made := ToPlugin([]byte(own)); made {
			t.Errorf("taken for one of ours:\n%s", own)
		}
	}
	n, err := Read(got)
	testutil.Must(t, err)
	testutil.Equal(t, "Read", Network{"mynet", []string{"0.4.0"}, []string{"bridge"}}, n)
	for text, part := range map[string]string{
		`{"name":"n","plugins":[]}`: "rename it",
		`{"name":"n"}`:              `no "type"`,
		`{"type":"a"}`:              `no "name"`,
		`{"name":"","type":"a"}`:    "not a network's name",
	} {
		_, err := FromPlugin([]byte(text))
		testutil.WantError(t, err, part, text)
	}
}

// Each refused list, with the text that the error must contain. No list is returned that could be written by mistake.
func TestRefused(t *testing.T) {
	tests := map[string]string{
		"":                                    "unexpected end of JSON input",
		" \n":                                 "unexpected end of JSON input",
		"\xef\xbb\xbf{}":                      "byte order mark",
		"[]":                                  "is a list: write an object",
		"{\n  \"name\": \"n\",\n  oops}":      "line 3: ",
		`{"name":"n","plugins":[{"type":"a"}`: "line 1: unexpected end",
		`{"name":"n","plugins":[{"type":"a"}]} trailing`:    "not valid JSON",
		`{"name":"n","plugins":[{"type":"a"}]}{}`:           "not valid JSON",
		`{"plugins":[{"type":"a"}]}`:                        `no "name"`,
		`{"name":7,"plugins":[{"type":"a"}]}`:               "name: is a number",
		`{"name":"n","type":"a"}`:                           ".conf",
		`{"name":"n"}`:                                      "nothing to chain to",
		`{"name":"n","plugins":[]}`:                         "nothing to chain to",
		`{"name":"n","plugins":{}}`:                         "not a list",
		`{"name":"n","plugins":[{}]}`:                       `plugins[0]: has no "type"`,
		`{"name":"n","plugins":[{"type":"a"},5]}`:           "plugins[1]: not an object",
		`{"name":"n","plugins":[{"type":"neardns"}]}`:       "no plugin but neardns",
		`{"name":"n","Plugins":[{"type":"a"}]}`:             "nothing to chain to",
		`{"name":"n","plugins":[],"plugins":[{"type":1}]}`:  "plugins: appears twice",
		`{"name":"n","cniVersion":1,"plugins":[]}`:          "cniVersion: is a number: write a string",
		`{"name":"n","cniVersions":["1",2],"plugins":[{}]}`: "cniVersions",
	}
	for list, part := range tests {
		got, err := Append([]byte(list), []byte(testEntry))
		testutil.WantError(t, err, part, "Append to "+list)
		testutil.Equal(t, "bytes of Append to "+list, nil, got)
	}
	for entry, part := range map[string]string{
		``:                                 "entry: not valid JSON",
		`{"type":"portmap"}`:               `its type is "portmap"`,
		`{"redirects":[]}`:                 "its type is",
		`{"type":"neardns"}`:               "redirects",
		`{"type":"neardns","redirects":[]`: "entry: not valid JSON",
	} {
		_, err := Append([]byte(flannel), []byte(entry))
		testutil.WantError(t, err, part, "Append of "+entry)
	}
}

func TestCheckVersion(t *testing.T) {
	for list, ok := range map[string]bool{
		`{"name":"n","plugins":[{"type":"a"}]}`:                                              false,
		`{"name":"n","cniVersion":"","plugins":[{"type":"a"}]}`:                              false,
		`{"name":"n","cniVersion":"0.2.0","plugins":[{"type":"a"}]}`:                         false,
		`{"name":"n","cniVersion":"0.3.1","plugins":[{"type":"a"}]}`:                         true,
		`{"name":"n","cniVersion":"1.1.0","plugins":[{"type":"a"}]}`:                         true,
		`{"name":"n","cniVersion":"2.0.0","plugins":[{"type":"a"}]}`:                         false,
		`{"name":"n","cniVersions":["0.3.1","1.0.0"],"plugins":[{"type":"a"}]}`:              true,
		`{"name":"n","cniVersions":["0.1.0","1.0.0"],"plugins":[{"type":"a"}]}`:              true,
		`{"name":"n","cniVersions":["1.0.0","x"],"plugins":[{"type":"a"}]}`:                  true,
		`{"name":"n","cniVersions":["1.0.0","1.2.0"],"plugins":[{"type":"a"}]}`:              false, // a later runtime may use 1.2.0
		`{"name":"n","cniVersion":"2.0.0","cniVersions":["1.0.0"],"plugins":[{"type":"a"}]}`: false,
	} {
		n, err := Read([]byte(list))
		testutil.Must(t, err)
		testutil.Equal(t, list+" is good", ok, n.CheckVersion(Versions()) == nil)
	}
}

// FuzzEdit checks that an edit changes no foreign value, can be undone byte for byte, and is not repeated.
func FuzzEdit(f *testing.F) {
	for _, s := range []string{flannel, flannelWithOurs, `{"name":"n","plugins":[{"type":"neardns"},{"type":"a"}]}`, `{"name":"n","type":"a"}`, `{"a":[1,{"b":"]"}],"name":"\u00e9","plugins":[{"type":"x","y":"},{"}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, list []byte) {
		if asList, err := FromPlugin(list); err == nil {
			if back, made := ToPlugin(asList); !made || !bytes.Equal(back, list) {
				t.Fatalf("not back from a list (%v):\n%q\n%q", made, list, back)
			}
			if _, err := Append(asList, []byte(testEntry)); err != nil && !errors.Is(err, ErrNoMain) {
				t.Fatalf("FromPlugin made a list that Append refuses: %v\n%s", err, asList)
			}
		}
		before, err := Drop(list)
		if err != nil {
			return
		}
		with, err := Append(list, []byte(testEntry))
		if err != nil {
			t.Fatalf("Drop took the list, Append did not: %v", err)
		}
		if again, err := Append(with, []byte(testEntry)); err != nil || !bytes.Equal(again, with) {
			t.Fatalf("second Append: %v\n%s\n%s", err, with, again)
		}
		if !bytes.Equal(list, with) {
			if back, err := Drop(with); err != nil || !bytes.Equal(back, before) {
				t.Fatalf("not undone (%v):\n%q\n%q", err, before, back)
			}
		}
		var was, is map[string]any
		if json.Unmarshal(before, &was) != nil {
			return // a number that no float64 holds; the text is kept all the same
		}
		if err := json.Unmarshal(with, &is); err != nil {
			t.Fatalf("not JSON: %v", err)
		}
		plugins := is["plugins"].([]any)
		is["plugins"] = plugins[:len(plugins)-1]
		testutil.Equal(t, "list without our entry", was, is)
	})
}

func TestHolds(t *testing.T) {
	const other = `{"type":"neardns","redirects":[{"clusterDNS":"10.96.0.11"}]}`
	for name, tc := range map[string]struct {
		list string
		want bool
	}{
		"last":                     {`{"name":"n","plugins":[{"type":"a"},` + testEntry + `]}`, true},
		"before another":           {`{"name":"n","plugins":[{"type":"a"},` + testEntry + `,{"type":"mesh"}]}`, true},
		"absent":                   {`{"name":"n","plugins":[{"type":"a"}]}`, false},
		"out of date":              {`{"name":"n","plugins":[{"type":"a"},` + other + `]}`, false},
		"twice":                    {`{"name":"n","plugins":[{"type":"a"},` + testEntry + `,` + testEntry + `]}`, false},
		"first, where none chains": {`{"name":"n","plugins":[` + testEntry + `,{"type":"a"}]}`, false},
	} {
		got, err := Holds([]byte(tc.list), []byte(testEntry))
		if err != nil || got != tc.want {
			t.Errorf("%s: %v, %v, want %v", name, got, err, tc.want)
		}
	}
	for _, bad := range []string{"", "{", "[]"} {
		if _, err := Holds([]byte(bad), []byte(testEntry)); err == nil {
			t.Errorf("list %q: no error", bad)
		}
		if _, err := Holds([]byte(`{"name":"n","plugins":[{"type":"a"}]}`), []byte(bad)); err == nil {
			t.Errorf("entry %q: no error", bad)
		}
	}
}
