package resolvconf

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/neardns/neardns/pkg/testutil"
)

// odd has one example of each oddity of resolv.conf files.
const odd = "# made by hand\n" +
	"; an older comment\r\n" +
	"\n" +
	"  nameserver\t10.0.0.1   # the first\n" +
	"search old.example\n" +
	"domain example.org\n" +
	"nameserver fe80::1%eth0\n" +
	"sortlist 130.155.160.0/255.255.240.0\n" +
	"options ndots:2 rotate ndots:3\n" +
	"\t \n" +
	"search a.example. . b.example # c\n" +
	"lookup file bind\n" +
	"options edns0 rotate:\n" +
	"garbage \x00\xff\n" +
	"nameserver not-an-address"

func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		text    string
		want    Settings
		host    []string // searches, where they differ
		wantErr string
	}{
		"nothing": {},
		"odd": {
			text: odd,
			want: Settings{
				[]string{"10.0.0.1", "fe80::1%eth0", "not-an-address"},
				[]string{"a.example.", ".", "b.example", "#", "c"},
				[]string{"ndots:3", "rotate:", "edns0"},
			},
			host: []string{"a.example", "b.example", "#", "c"},
		},
		"no address": {
			text:    "nameserver 10.0.0.1\nnameserver\n\nnameserver \t\n",
			want:    Settings{Nameservers: []string{"10.0.0.1"}},
			wantErr: "line 2: nameserver without an address: write one behind it or take the line out\nline 4: nameserver without an address: write one behind it or take the line out",
		},
		"the last search line wins, also an empty one":             {text: "search a\nsearch\n"},
		"keywords are words":                                       {text: "nameservers 1.1.1.1\nSearch a\noption b\n;nameserver 1.1.1.1\n#search a\n # options b\n"},
		"nameservers are not made unique, the kubelet neither":     {text: "nameserver 1.1.1.1\nnameserver 1.1.1.1", want: Settings{Nameservers: []string{"1.1.1.1", "1.1.1.1"}}},
		"options over lines, by name, the last in the first place": {text: "options a:1 b\noptions c a:2\noptions\n", want: Settings{Options: []string{"a:2", "b", "c"}}},
		"a lone dot": {text: "search .", want: Settings{Searches: []string{"."}}, host: []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			f := Parse([]byte(c.text))
			testutil.Equal(t, "printed", c.text, string(f.Bytes()))
			got, err := f.Settings()
			testutil.Equal(t, "error", c.wantErr, errText(err))
			testutil.Equal(t, "settings", c.want, got, cmpopts.EquateEmpty())
			if c.host != nil {
				c.want.Searches = c.host
			}
			host, err := f.Host()
			testutil.Equal(t, "error as host", c.wantErr, errText(err))
			testutil.Equal(t, "as host", c.want, host, cmpopts.EquateEmpty())
		})
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestWith(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		set  Settings
		want string
	}{
		"an empty file": {
			set:  Settings{[]string{"10.0.0.1", "fd00::a"}, []string{"a", "b"}, []string{"ndots:5", "edns0"}},
			want: "nameserver 10.0.0.1\nnameserver fd00::a\nsearch a b\noptions ndots:5 edns0\n",
		},
		"only what differs is written": {
			text: "search\ta.  b # ours\n\noptions   ndots:5\nnameserver  10.0.0.1",
			set:  Settings{[]string{"10.0.0.1"}, []string{"a.", "b", "#", "ours"}, []string{"ndots:1", "edns0"}},
			want: "search\ta.  b # ours\n\noptions ndots:1 edns0\nnameserver  10.0.0.1",
		},
		"lines of a kind become one block, the rest stays in order": {
			text: "# top\nnameserver 1.1.1.1 # one\n# between\nnameserver 2.2.2.2\nsortlist 10/8\noptions a\noptions b\n; end",
			set:  Settings{[]string{"3.3.3.3", "1.1.1.1"}, nil, []string{"b"}},
			want: "# top\n# between\nnameserver 3.3.3.3\nnameserver 1.1.1.1\nsortlist 10/8\noptions b\n; end",
		},
		"no end of line where a line is added": {
			text: "nameserver 1.1.1.1",
			set:  Settings{[]string{"1.1.1.1"}, []string{"a"}, nil},
			want: "nameserver 1.1.1.1\nsearch a\n",
		},
		"everything away": {
			text: "#\nnameserver 1.1.1.1\nsearch a\noptions b\nfoo",
			want: "#\nfoo",
		},
		"behind domain, which would win": {
			text: "search a\ndomain b\n",
			set:  Settings{Searches: []string{"c"}},
			want: "domain b\nsearch c\n",
		},
		"a nameserver line at fault goes with its kind": {
			text: "nameserver\noptions a\n",
			set:  Settings{[]string{"1.1.1.1"}, nil, []string{"a"}},
			want: "nameserver 1.1.1.1\noptions a\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := Parse([]byte(c.text))
			got, err := f.With(c.set)
			testutil.Must(t, err)
			testutil.Equal(t, "the file", c.want, string(got.Bytes()))
			testutil.Equal(t, "the file itself", c.text, string(f.Bytes()))
		})
	}
}

func TestWithRefusesWhatIsNoWord(t *testing.T) {
	before := "nameserver 1.1.1.1\n"
	for _, bad := range []string{"", " ", "a b", "1\nnameserver 6.6.6.6", "a\tb", "a\x00", "a\u00a0b", "a\u0085b"} {
		for _, s := range []Settings{{Nameservers: []string{"1.1.1.1", bad}}, {Searches: []string{bad}}, {Options: []string{bad}}} {
			f := Parse([]byte(before))
			got, err := f.With(s)
			testutil.WantError(t, err, "cannot stand in a resolv.conf", bad)
			if got != nil {
				t.Errorf("%q: %v", bad, got)
			}
			testutil.Equal(t, "the file", before, string(f.Bytes()))
		}
	}
}

// FuzzFile checks for any file that Bytes returns what Parse read, that With changes no byte if the settings are the file's own, and that
// With other settings the result has them and keeps all other lines in their order.
func FuzzFile(f *testing.F) {
	f.Add([]byte(odd), "10.0.0.1 10.0.0.2", "a b", "ndots:1 x")
	f.Add([]byte("nameserver\nsearch"), "", ".", "a: a")
	f.Add([]byte("search a\ndomain b\n\n"), "x", "", "")
	f.Fuzz(func(t *testing.T, text []byte, nameservers, searches, options string) {
		file := Parse(text)
		if got := file.Bytes(); !bytes.Equal(got, text) {
			t.Fatalf("read %q, printed %q", text, got)
		}
		now, _ := file.Settings()
		_, _ = file.Host()
		if same, err := file.With(now); err == nil && !bytes.Equal(same.Bytes(), text) {
			t.Fatalf("%q said again is %q", text, same.Bytes())
		} else if err != nil && !bytes.ContainsFunc(text, unicode.IsControl) {
			t.Fatalf("%q cannot be said again: %v", text, err)
		}

		s := Settings{strings.Fields(nameservers), strings.Fields(searches), lastOfEach(strings.Fields(options))}
		changed, err := file.With(s)
		if err != nil {
			return // a control character
		}
		again := Parse(changed.Bytes())
		if got, _ := again.Settings(); !cmp.Equal(s, got, cmpopts.EquateEmpty()) {
			t.Fatalf("%q with %q says %q", text, s, got)
		}
		if want, got := others(file), others(again); !slices.Equal(want, got) {
			t.Fatalf("%q with %q has lost a line:\n%q\n%q", text, s, want, got)
		}
		if string(file.Bytes()) != string(text) {
			t.Fatal("the file itself was changed")
		}
	})
}

// others returns the lines of a file that With never replaces.
func others(f *File) []string {
	var out []string
	for _, l := range f.lines {
		if l.keyword != keyNameserver && l.keyword != keySearch && l.keyword != keyOptions {
			out = append(out, strings.TrimSuffix(l.text, "\n"))
		}
	}
	return out
}
