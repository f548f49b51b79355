package strict

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestFaultError(t *testing.T) {
	for want, f := range map[string]Fault{
		"a":                    {Message: "a"},
		"x.y: a":               {Field: "x.y", Message: "a"},
		"node.yaml: x: a":      {Place: Place{File: "node.yaml"}, Field: "x", Message: "a"},
		"stubDomains:2: x: a":  {Place: Place{File: "stubDomains", Line: 2}, Field: "x", Message: "a"},
		"node.yaml:3:12: x: a": {Place: Place{"node.yaml", 3, 12}, Field: "x", Message: "a"},
	} {
		if got := f.Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"redirects", "clusterDomain", "localAddresses", "dns", "resolvConf", "resolvConfPaths"}
	for key, want := range map[string]string{
		"redirect": "redirects", "cluster_domain": "clusterDomain", "CLUSTERDOMAIN": "clusterDomain", "clusterDomian": "clusterDomain",
		"local-addresses": "localAddresses", "resolv_conf_path": "resolvConfPaths", "resolvConfs": "resolvConf",
		"colour": "", "": "", "clusterDomainOfThis": "", strings.Repeat("x", 1000): "",
	} {
		if got, ok := Nearest(key, known...); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v, want %q", key, got, ok, want)
		}
	}
	if got := Suggest("colour", "a", "b"); got != "take it out, or use one of a, b" {
		t.Error(got)
	}
}

func TestReader(t *testing.T) {
	v, err := JSON("", "top", []byte(` {"a": "x", "b": [1, "y", null], "a": {"c d": true}, "e": "${E}"} `))
	testutil.Must(t, err)
	r := Reader{Expand: func(_ Value, text string) (string, error) {
		if text == "${E}" {
			return "", errors.New("E is not set: set it")
		}
		return strings.ToUpper(text), nil
	}}
	var keys []string
	for _, m := range r.Members(v) {
		keys = append(keys, m.Value.Field)
		switch m.Key {
		case "b":
			got := r.Texts(m.Value, func(_ Value, text string) string { return text })
			if fmt.Sprint(got) != "[Y]" {
				t.Errorf("texts %v", got)
			}
		case "a", "e":
			r.Text(m.Value)
		}
	}
	r.Items(v)
	r.OneOf(v.At("f"), "z", "p", "q")
	r.Unknown(Member{Key: "bb", Value: v.At("bb")}, "b", "c")
	want := `top.a: appears twice: write it once
top.b[0]: is a number: write a string, in quotes
top.b[2]: is null: write a string, in quotes
top.a: is an object: write a string, in quotes
top.e: E is not set: set it
top: is an object: write a list, such as ["a", "b"]
top.f: "z" is not known: write one of p, q
top.bb: unknown key: write "b"`
	if got := r.Err(0).Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := r.Err(1).Error(); got != "top.a: appears twice: write it once\nand 7 more" {
		t.Error(got)
	}
	if fmt.Sprint(keys) != "[top.a top.b top.a top.e]" {
		t.Error(keys)
	}
	if last := v.Map()["a"]; last.Kind != Object || last.Members()[0].Value.Field != `top.a."c d"` {
		t.Errorf("%+v", last)
	}
	if all := r.Faults(); !all[7].Unknown || all[6].Unknown {
		t.Error("not the unknown key is marked")
	}
	testutil.Check(t, new(Reader).Err(0))
}

// Each value of a JSON text has its line.
func TestLines(t *testing.T) {
	v, err := JSON("f", "", []byte("\n{\"a\":\n [1,\n\n {\"b\": \"x\\ny\", \"c\":\n2}]}\n"))
	testutil.Must(t, err)
	var r Reader
	list := v.Map()["a"]
	for _, v := range []Value{v, list, list.Items()[0], list.Items()[1], list.Items()[1].Map()["b"], list.Items()[1].Map()["c"]} {
		r.Fault(v, "x")
	}
	want := "f:2: x\nf:3: a: x\nf:3: a[0]: x\nf:5: a[1]: x\nf:5: a[1].b: x\nf:6: a[1].c: x"
	if got := r.Err(0).Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Sorted goes into errors that were joined, and leaves a wrapped one whole.
func TestSorted(t *testing.T) {
	at := func(file string, line, column int) error {
		return &Fault{Place: Place{file, line, column}, Message: "x"}
	}
	err := errors.Join(at("b", 5, 2), errors.Join(at("b", 5, 1), at("a", 7, 7), nil), errors.New("no position"),
		fmt.Errorf("read: %w; or", errors.Join(at("b", 4, 9), at("a", 1, 1))), at("b", 0, 0))
	want := "no position\na:7:7: x\nb: x\nread: b:4:9: x\na:1:1: x; or\nb:5:1: x\nb:5:2: x"
	if got := Sorted(err); got.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", got, want)
	}
	if Sorted(nil) != nil {
		t.Error("no error became one")
	}
}

func TestIsDomain(t *testing.T) {
	for s, want := range map[string]bool{
		"cluster.local": true, "_tcp.B.example": true, "a": true, "1.2": true, "": false, ".": false, "a.": false, "a..b": false, "-a.b": false,
		"a-.b": false, "a b": false, "ä.example": false, strings.Repeat("a", 63): true, strings.Repeat("a", 64): false,
		strings.Repeat("a.", 126) + "a": true, strings.Repeat("a.", 126) + "ab": false,
	} {
		if IsDomain(s) != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
}

// FuzzJSON checks that JSON never panics, accepts the same texts as encoding/json, and that each value has a kind, a place and a field.
func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"a": [1, "b", null, true, {"": -1e9}], "a": "\ud800"}`))
	f.Add([]byte(` [[], {}, ""] `))
	f.Add([]byte(`{"a"`))
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := JSON("f", "top", text)
		if (err == nil) != json.Valid(text) {
			t.Fatalf("%q: %v", text, err)
		}
		if err != nil {
			return
		}
		var walk func(v Value)
		walk = func(v Value) {
			if v.Kind == "" || v.Kind == Other || v.Place.Line < 1 || v.Place.File != "f" || !strings.HasPrefix(v.Field, "top") {
				t.Fatalf("%q: %+v", text, v)
			}
			for _, item := range v.Items() {
				walk(item)
			}
			for _, m := range v.Members() {
				walk(m.Value)
			}
		}
		walk(v)
	})
}

func TestErrorLine(t *testing.T) {
	for text, want := range map[string]int{"": 1, "{\n\n": 3, "{\n}\n}": 3, "{\n x}\n": 2, "[1]\n\n2\n": 3} {
		if _, err := JSON("", "", []byte(text)); err == nil || ErrorLine([]byte(text), err) != want {
			t.Errorf("%q: %v is on line %d, want %d", text, err, ErrorLine([]byte(text), err), want)
		}
	}
}

func TestQuote(t *testing.T) {
	for s, want := range map[string]string{
		strings.Repeat("x", 60): `"` + strings.Repeat("x", 60) + `"`,
		strings.Repeat("x", 61): `"` + strings.Repeat("x", 60) + `"…`,
		strings.Repeat("ü", 60): `"` + strings.Repeat("ü", 60) + `"`,
	} {
		if got := Quote(s); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
