package resolvconf

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/neardns/neardns/pkg/strict"
	"github.com/neardns/neardns/pkg/testutil"
)

// decode reads an overlay from JSON, as the field "dns".
func decode(text string) (Overlay, error) {
	v, err := strict.JSON("", "dns", []byte(text))
	var r strict.Reader
	o := ReadOverlay(&r, r.Members(v))
	return o, cmp.Or(err, r.Err(8))
}

func TestDecodeOverlay(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want Overlay
	}{
		"nothing": {text: ` {} `},
		"all of it": {
			text: `{"policy": "Custom", "nameservers": ["10.96.0.10", "FD00:0::A"], "searches": ["svc.cluster.local", "."],
				"options": [{"name": "ndots", "value": "2"}, {"value": 3, "name": "timeout"}, {"name": "edns0"}]}`,
			want: Overlay{Policy: None, Settings: settings("10.96.0.10 fd00::a", "svc.cluster.local .", "ndots:2 timeout:3 edns0")},
		},
		"options as words":              {text: `{"options": ["ndots:2", "edns0", "rotate:", {"name": "timeout", "value": 1}]}`, want: Overlay{Settings: settings("", "", "ndots:2 edns0 rotate timeout:1")}},
		"search":                        {text: `{"search": ["a", "_tcp.B.example."]}`, want: Overlay{Settings: settings("", "a _tcp.B.example", "")}},
		"no value":                      {text: `{"options": [{"name": "a", "value": null}, {"name": "b", "value": ""}, {"name": "c", "value": 0}, {"name": "d", "value": -1}]}`, want: Overlay{Settings: settings("", "", "a b c:0 d:-1")}},
		"a value with a colon":          {text: `{"options": [{"name": "a", "value": "b:c"}]}`, want: Overlay{Settings: settings("", "", "a:b:c")}},
		"escapes":                       {text: `{"s\u0065arch": ["\u0061"]}`, want: Overlay{Settings: settings("", "a", "")}},
		"what is too much is for Apply": {text: `{"nameservers": ["1.1.1.1", "1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"]}`, want: Overlay{Settings: settings("1.1.1.1 1.1.1.1 2.2.2.2 3.3.3.3 4.4.4.4", "", "")}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decode(c.text)
			testutil.Must(t, err)
			testutil.Equal(t, "overlay", c.want, got, cmpopts.EquateEmpty())
		})
	}
}

func TestDecodeOverlayFaults(t *testing.T) {
	const (
		notAddress = " is not an IP address: write it without port, prefix, zone or name, like 10.96.0.10"
		notDomain  = " is not a domain: write it like svc.cluster.local"
	)
	for text, want := range map[string]string{
		`null`:    "dns: is null: write an object, such as {\"key\": \"value\"}",
		`"ndots"`: "dns: is a string: write an object, such as {\"key\": \"value\"}",
		`[]`:      "dns: is a list: write an object, such as {\"key\": \"value\"}",
		`{"nameserver": [], "option": {}, "Search": [], "dnsPolicy": ""}`: `dns.nameserver: unknown key: write "nameservers"` + "\n" +
			`dns.option: unknown key: write "options"` + "\n" +
			`dns.Search: unknown key: write "searches"` + "\n" +
			`dns.dnsPolicy: unknown key: take it out, or use one of nameservers, searches, options, policy`,
		`{"a\nb": 1}`:                    `dns."a\nb": unknown key: take it out, or use one of nameservers, searches, options, policy`,
		`{"search": [], "searches": []}`: "dns.searches: search appears already and means the same: write one of them",
		`{"search": [], "search": []}`:   "dns.search: appears twice: write it once\ndns.search: search appears already and means the same: write one of them",
		`{"policy": "none"}`:             `dns.policy: policy "none" is not known: write one of Default, ClusterFirst, ClusterFirstWithHostNet, None`,
		`{"policy": 1}`:                  "dns.policy: is a number: write a string, in quotes",
		`{"nameservers": "10.0.0.1"}`:    "dns.nameservers: \"10.0.0.1\" is not the word local: write local, or a list of addresses in brackets",
		`{"nameservers": ["1.1.1.1", "010.0.0.1", "1.1.1.1:53", "10.0.0.0/8", "fe80::1%a b", "", null]}`: `dns.nameservers[1]: "010.0.0.1"` + notAddress + "\n" +
			`dns.nameservers[2]: "1.1.1.1:53"` + notAddress + "\n" +
			`dns.nameservers[3]: "10.0.0.0/8"` + notAddress + "\n" +
			`dns.nameservers[4]: "fe80::1%a b"` + notAddress + "\n" +
			`dns.nameservers[5]: ""` + notAddress + "\n" +
			`dns.nameservers[6]: is null: write a string, in quotes`,
		`{"search": ["a b", "-a", "a-", "a..b", "..", ""]}`: `dns.search[0]: "a b"` + notDomain + "\n" +
			`dns.search[1]: "-a"` + notDomain + "\n" +
			`dns.search[2]: "a-"` + notDomain + "\n" +
			`dns.search[3]: "a..b"` + notDomain + "\n" +
			`dns.search[4]: ".."` + notDomain + "\n" +
			`dns.search[5]: ""` + notDomain,
		`{"search": ["` + strings.Repeat("a", 64) + `"]}`:     `dns.search[0]: "` + strings.Repeat("a", 60) + `"…` + notDomain,
		`{"search": ["` + strings.Repeat("a.", 126) + `ab"]}`: `dns.search[0]: "` + strings.Repeat("a.", 30) + `"…` + notDomain,
		`{"options": {"ndots": 2}}`:                           "dns.options: is an object: write a list, such as [\"a\", \"b\"]",
		`{"options": ["ndots 2", ":2", 3]}`: `dns.options[0]: "ndots 2" is not an option: write it like ndots:2, without white space` + "\n" +
			`dns.options[1]: ":2" is not an option: write it like ndots:2, without white space` + "\n" +
			`dns.options[2]: is a number: write {"name": "ndots", "value": "2"}`,
		`{"options": [{"name": "ndots"}, {"value": 1}]}`:                 "dns.options[1].name: missing: name and value of an option stand in one object (in YAML under one dash), or in one word in quotes, like ndots:2",
		`{"options": [{"name": "", "value": 1}]}`:                        `dns.options[0].name: "" is not an option's name: write it without colon and white space, and the value beside it as value`,
		`{"options": [{"name": "ndots:2"}]}`:                             `dns.options[0].name: "ndots:2" is not an option's name: write it without colon and white space, and the value beside it as value`,
		`{"options": [{"name": 5}]}`:                                     "dns.options[0].name: is a number: write a string, in quotes",
		`{"options": [{"name": "ndots", "values": 2}]}`:                  `dns.options[0].values: unknown key: write "value"`,
		`{"options": [{"name": "ndots", "value": 2, "value": 3}]}`:       "dns.options[0].value: appears twice: write it once",
		`{"options": [{"name": "ndots", "value": 1.5}]}`:                 `dns.options[0].value: "1.5" is not an integer: write one, or put what is meant in quotes`,
		`{"options": [{"name": "ndots", "value": 1e3}]}`:                 `dns.options[0].value: "1e3" is not an integer: write one, or put what is meant in quotes`,
		`{"options": [{"name": "rotate", "value": true}]}`:               "dns.options[0].value: is a boolean: write a string, in quotes",
		`{"options": [{"name": "a", "value": "1\nnameserver 6.6.6.6"}]}`: `dns.options[0].value: "1\nnameserver 6.6.6.6" cannot stand in a resolv.conf: it must be one word`,
	} {
		t.Run(text, func(t *testing.T) {
			_, err := decode(text)
			testutil.Equal(t, "faults", want, errText(err))
		})
	}
	many := `{"nameservers": [` + strings.Repeat(`"x",`, 100_000) + `"x"]}`
	if _, err := decode(many); err == nil || !strings.HasSuffix(err.Error(), "\nand 99993 more") || len(err.Error()) > 2000 {
		t.Errorf("%.3000v", err)
	}
}

// FuzzReadOverlay checks that reading never panics, and that an accepted overlay can be written.
func FuzzReadOverlay(f *testing.F) {
	f.Add([]byte(`{"policy": "None", "nameservers": ["10.96.0.10"], "search": ["a"], "options": [{"name": "ndots", "value": 2}, {"name": "edns0"}]}`))
	f.Add([]byte(`[{"options": [{"name": "ndots"}, {"value": 1}]}]`))
	f.Add([]byte(`{"a": [{"b": null}], "a": 1e999, "": "\ud800"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		o, err := decode(string(text))
		if err != nil {
			return
		}
		printed := printed(t, o.Settings)
		if again, err := Parse([]byte(printed)).Settings(); err != nil || fmt.Sprint(again.Searches) != fmt.Sprint(o.Searches) {
			t.Fatalf("%q prints as %q (%v)", text, printed, err)
		}
	})
}

// TestReadme checks that the example in README.md is a valid overlay.
func TestReadme(t *testing.T) {
	text := testutil.ReadFile(t, "README.md")
	_, block, ok := strings.Cut(text, "```json\n")
	block, _, ends := strings.Cut(block, "```")
	if !ok || !ends {
		t.Fatal("README.md shows none")
	}
	got, err := decode(block)
	testutil.Must(t, err)
	testutil.Equal(t, "overlay", Overlay{Policy: None, Settings: settings("10.96.0.10", "svc.cluster.local", "ndots:2 edns0")}, got)
}

// An annotation must not cost the node much CPU time: one with thousands of keys is refused with one fault.
func TestManyKeysAreRefused(t *testing.T) {
	var text strings.Builder
	text.WriteString("{")
	for i := range 8000 {
		fmt.Fprintf(&text, `"k%d":1,`, i)
	}
	text.WriteString(`"searches":["a"]}`)
	_, err := decode(text.String())
	testutil.Equal(t, "error", "dns: more than 64 keys: take out those that are not settings", errText(err))
}
