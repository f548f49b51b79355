package plainyaml

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

func TestJSON(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"JSON as it is", ` {"a" : [1, "b"] }`, ` {"a" : [1, "b"] }`},
		{"JSON of several lines", "{\n\t\"a\": 1\n}", "{\n\t\"a\": 1\n}"},
		{"the proposal's example", `nameservers: ["1.2.3.4"]
search:
  - ns1.svc.cluster.local
  - my.dns.search.suffix
options:
  - name: ndots
    value: 2
  - name: edns0
`, `{"nameservers":["1.2.3.4"],"search":["ns1.svc.cluster.local","my.dns.search.suffix"],"options":[{"name":"ndots","value":2},{"name":"edns0"}]}`},
		{"the proposal's second, which its own types do not take", "- options:\n  - name: ndots\n  - value: 1\n", `[{"options":[{"name":"ndots"},{"value":1}]}]`},
		{"a list at its key's indentation", "a:\n- b\n- c\nd: e", `{"a":["b","c"],"d":"e"}`},
		{"comments and empty lines", "# x\n\na: b # c\n  # d\ne: 'f # g' # h\n", `{"a":"b","e":"f # g"}`},
		{"nothing behind a key", "a:\nb:\n", `{"a":null,"b":null}`},
		{"addresses", "- 10.96.0.10\n- fd00::a\n- ::1\n- 1:2::3:4\n", `["10.96.0.10","fd00::a","::1","1:2::3:4"]`},
		{"flow", "{a: [b, 'c', \"d\", 1, true, null], e: {f: g}}", `{"a":["b","c","d",1,true,null],"e":{"f":"g"}}`},
		{"flow as JSON behind a key", `a: {"b":"c","d":[]}`, `{"a":{"b":"c","d":[]}}`},
		{"lists in lists", "- - a\n  - b\n-\n  - c\n-\n", `[["a","b"],["c"],null]`},
		{"deeper all through", "  a: b\n  c: d\n", `{"a":"b","c":"d"}`},
		{"words with colons", "- ndots:2\n- a:b:c\n", `["ndots:2","a:b:c"]`},
		{"quotes", `a: 'it''s'` + "\n" + `"b": "x\ty\"z"` + "\n" + `'c d': ""`, `{"a":"it's","b":"x\ty\"z","c d":""}`},
		{"integers", "- 0\n- -1\n- 10\n", `[0,-1,10]`},
		{"a lone dot", "search: [., a.b]", `{"search":[".","a.b"]}`},
		{"letters of other scripts, in quotes", "a: 'größe 名'", `{"a":"größe 名"}`},
		{"a word", "hello-world", `"hello-world"`},
		{"dashes behind the first character", "searches: [a-b.example, x-ray, -up, a--b, a-]", `{"searches":["a-b.example","x-ray","-up","a--b","a-"]}`},
		{"a zone", "- fe80::1%eth0\n", `["fe80::1%eth0"]`},
		{"ends of lines as on Windows", "a: b\r\nc: d\r\n", `{"a":"b","c":"d"}`},
		{"names that begin with a digit", "- 3com.example\n- 10.in-addr.arpa\n", `["3com.example","10.in-addr.arpa"]`},
	} {
		got, err := JSON(tc.in)
		if err != nil || string(got) != tc.want {
			t.Errorf("%s: %s, %v\nwant %s", tc.name, got, err, tc.want)
			continue
		}
		sameAsLibrary(t, tc.in, got)
	}
}

// Texts that are refused, with a part of each error.
func TestRefused(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"", "nothing is written there"},
		{"# only this", "nothing is written there"},
		{"a: yes", `line 1: "yes" is a word to some`},
		{"a: b\nc: 010", `line 2: "010" is a word to some`},
		{"a: 0x1f", "put it in quotes"},
		{"a: 1.5", "put it in quotes"},
		{"a: 1_000", "put it in quotes"},
		{"a: 12:30", "put it in quotes"},
		{"a: 2001-01-01", "put it in quotes"},
		{"a: True", "put it in quotes"},
		{"a: -.inf", "put it in quotes"},
		{"a: 12345678901234567890", "put it in quotes"},
		{"---\na: b", "documents"},
		{"a: |\n  b", "put it in quotes"},
		{"a: b c", "no plain word"},
		{"A: [0?]", "no plain word"}, // an earlier version accepted it, the library refuses it
		{"a: größe", "no plain word"},
		{"a: [b:]", "a colon where YAML begins a value"},
		{"a: +5", "no plain word"},
		{"- %a", `has a '%'`},
		{"a: -", `has a '-'`},
		{"a: --", `has a '-'`},
		{"a: &x b", "put it in quotes"},
		{"a: !!str b", "put it in quotes"},
		{"a: b: c", "a colon where YAML begins a value"},
		{"a: b\n  c: d", "line 2: it is indented deeper"},
		{"a: b\n  c", "line 2: it is indented deeper"},
		{"a:\n  b: c\n d: e", "line 3: it is indented deeper"},
		{"  a: b\nc: d", "line 1: it is indented deeper"},
		{"a:\n\tb: c", "indent with spaces"},
		{"a: [b", `has no ']' on the same line`},
		{"a: [b\n  , c]", `has no ']' on the same line`},
		{"a: [b c: d]", "a colon where YAML begins a value"},
		{"a: [b] c", `"c" follows the end of the value`},
		{"a: 'b", "no closing quote"},
		{`a: "\x41"`, "only the escapes of JSON"},
		{`a: "\ud83d\ude00"`, "write the character itself"},
		{"a: {b}", "a key with a colon and a space behind it is wanted"},
		{"a: [,]", "a value is missing"},
		{"? a", "no plain word"},
		{"<<: a", "is not a plain key"},
		{"1: a", "is not a plain key"},
		{"a: b\nc", "a key with a colon"},
		{"- a\nb: c", "does not fit the lines before it"},
		{"a: \xff", "not UTF-8"},
		{strings.Repeat("[", 100), "more than 16 levels"},
		{strings.Repeat("- ", 100) + "a", "more than 16 levels"},
		{strings.Repeat("a", maxSize+1), "are read at most"},
	} {
		got, err := JSON(tc.in)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%.60q: %s, %v\nwant %q", tc.in, got, err, tc.want)
		}
	}
}

// sameAsLibrary fails the test if a YAML library reads the text differently. It skips texts with duplicate keys: the library refuses them,
// while JSON leaves that to the decoder of its output.
func sameAsLibrary(t *testing.T, in string, got []byte) {
	t.Helper()
	if hasEqualKeys(t, got) {
		return
	}
	theirs, err := yaml.YAMLToJSONStrict([]byte(in))
	if err != nil {
		t.Errorf("%q: taken for %s, the library says %v", in, got, err)
		return
	}
	var a, b any
	for _, x := range []struct {
		text []byte
		into *any
	}{{got, &a}, {theirs, &b}} {
		d := json.NewDecoder(strings.NewReader(string(x.text)))
		d.UseNumber() // 1 and 1.0 are different
		if err := d.Decode(x.into); err != nil {
			t.Fatalf("%q: not JSON (%v): %s", in, err, x.text)
		}
	}
	if d := cmp.Diff(b, a); d != "" {
		t.Errorf("%q (-library +here):\n%s", in, d)
	}
}

// hasEqualKeys reports whether an object in the JSON has a key twice.
func hasEqualKeys(t *testing.T, text []byte) bool {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(text)))
	var walk func() bool
	walk = func() bool {
		token, err := d.Token()
		if err != nil {
			t.Fatalf("not JSON (%v): %s", err, text)
		}
		found := false
		var keys []string
		for delim, ok := token.(json.Delim); ok && d.More(); {
			if delim == '{' {
				key, _ := d.Token()
				name, _ := key.(string)
				found = found || slices.Contains(keys, name)
				keys = append(keys, name)
			}
			found = walk() || found
		}
		if _, ok := token.(json.Delim); ok {
			_, _ = d.Token() // the closing bracket or brace
		}
		return found
	}
	return walk()
}

func FuzzJSON(f *testing.F) {
	for _, s := range []string{
		"nameservers: [1.2.3.4]\nsearch:\n  - a.b\noptions:\n  - name: ndots\n    value: 2\n  - name: edns0\n",
		"- options:\n  - name: ndots\n  - value: 1\n", "a: {b: 'c', \"d\":[1]} # e", "- - a\n  -\n- b: c\n  d:\n  - e\n", "a: fd00::1\nb: ::1", "a: 0x1\nb: 1e3\nc: 1:2", "A: [0?]",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got, err := JSON(in)
		if err != nil {
			if err.Error() == "" || strings.ContainsAny(err.Error(), "\n") {
				t.Errorf("%q: error %q", in, err)
			}
			return
		}
		if !json.Valid(got) {
			t.Fatalf("%q: not JSON: %q", in, got)
		}
		if json.Valid([]byte(in)) {
			return // text that is JSON already is returned as it is
		}
		sameAsLibrary(t, in, got)
	})
}
