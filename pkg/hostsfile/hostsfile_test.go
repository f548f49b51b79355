package hostsfile

import (
	"bytes"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/neardns/neardns/integration/compat"
)

var sameAddr = cmpopts.EquateComparable(netip.Addr{})

func entry(addr string, names ...string) Entry {
	return Entry{Addr: netip.MustParseAddr(addr), Names: names}
}

var registry = []Entry{
	entry("10.96.0.5", "registry.shop.svc", "registry.shop.svc.cluster.local"),
	entry("fd00:10:96::5", "registry.shop.svc", "registry.shop.svc.cluster.local"),
}

const (
	line4 = "10.96.0.5\tregistry.shop.svc registry.shop.svc.cluster.local # by neardns-agent hosts"
	line6 = "fd00:10:96::5\tregistry.shop.svc registry.shop.svc.cluster.local # by neardns-agent hosts"
	both  = line4 + "\n" + line6 + "\n"
)

func TestApply(t *testing.T) {
	compat.Say(t, "hosts", "an administrator's line for the name", "wins, and is reported")
	long := strings.Repeat("x", 1<<20)
	for name, c := range map[string]struct {
		text, want string
		left       []string
	}{
		"empty":                      {text: "", want: both},
		"plain":                      {text: "127.0.0.1 localhost\n", want: "127.0.0.1 localhost\n" + both},
		"no line break at the end":   {text: "127.0.0.1 localhost", want: both + "127.0.0.1 localhost"},
		"carriage returns":           {text: "127.0.0.1 localhost\r\n", want: "127.0.0.1 localhost\r\n" + both},
		"a carriage return ends it":  {text: "127.0.0.1 localhost\r", want: both + "127.0.0.1 localhost\r"},
		"NUL":                        {text: "a\x00b\n\x00", want: both + "a\x00b\n\x00"},
		"a line of a megabyte":       {text: long, want: both + long},
		"ours already":               {text: "a\n" + both, want: "a\n" + both},
		"ours twice":                 {text: both + "a\n" + both, want: "a\n" + both},
		"ours, another address":      {text: "a\n" + strings.ReplaceAll(both, "10.96.0.5", "10.96.0.6"), want: "a\n" + both},
		"ours, edited":               {text: "a\nwhatever " + Marker + "\n", want: "a\n" + both},
		"ours, with carriage return": {text: "a\r\n" + line4 + "\r\n", want: "a\r\n" + both},
		"foreign lines behind ours":  {text: "a\n" + both + "b\n", want: "a\nb\n" + both},
		"ours, with a word after it": {text: "a\n1.2.3.4 a " + Marker + " no\n", want: "a\n" + both},
		"half a line of ours": { // without the marker it is another program's line
			text: "a\n10.96.0.5\tregistry.shop.svc registry", left: []string{"registry.shop.svc"},
			want: "10.96.0.5\tregistry.shop.svc.cluster.local " + Marker + "\nfd00:10:96::5\tregistry.shop.svc.cluster.local " + Marker +
				"\na\n10.96.0.5\tregistry.shop.svc registry"},
		"a foreign name wins, in any case": {
			text: "192.0.2.1 Registry.Shop.svc.\n", left: []string{"registry.shop.svc"},
			want: "192.0.2.1 Registry.Shop.svc.\n10.96.0.5\tregistry.shop.svc.cluster.local " + Marker + "\nfd00:10:96::5\tregistry.shop.svc.cluster.local " + Marker + "\n"},
		"all names foreign": {
			text: "192.0.2.1 registry.shop.svc registry.shop.svc.cluster.local", left: []string{"registry.shop.svc", "registry.shop.svc.cluster.local"},
			want: "192.0.2.1 registry.shop.svc registry.shop.svc.cluster.local"},
		"a name in a comment":          {text: "192.0.2.1 a # registry.shop.svc\n", want: "192.0.2.1 a # registry.shop.svc\n" + both},
		"a name behind NUL":            {text: "192.0.2.1 a\x00 registry.shop.svc\n", want: "192.0.2.1 a\x00 registry.shop.svc\n" + both},
		"a name without an address":    {text: "127.1 registry.shop.svc\n", want: "127.1 registry.shop.svc\n" + both},
		"a name of an address in zone": {text: "fe80::1%eth0 registry.shop.svc\n", left: []string{"registry.shop.svc"}, want: "fe80::1%eth0 registry.shop.svc\n10.96.0.5\tregistry.shop.svc.cluster.local " + Marker + "\nfd00:10:96::5\tregistry.shop.svc.cluster.local " + Marker + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, left := Apply([]byte(c.text), registry)
			if d := cmp.Diff(c.want, string(got)); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			if d := cmp.Diff(c.left, left); d != "" {
				t.Errorf("left (-want +got):\n%s", d)
			}
			hold(t, []byte(c.text), registry)
		})
	}
}

func TestApplyLeavesOut(t *testing.T) {
	for _, e := range []Entry{{Names: []string{"a"}}, entry("10.0.0.1"), entry("10.0.0.1", "a b"), entry("10.0.0.1", "a#"), entry("10.0.0.1", "a\n"),
		entry("fe80::1%eth0", "a"), entry("10.0.0.1", strings.Repeat("a", 254))} {
		if got, _ := Apply([]byte("x"), []Entry{e}); string(got) != "x" {
			t.Errorf("%v: %q", e, got)
		}
	}
}

func TestOurs(t *testing.T) {
	text := "10.0.0.1 a\n" + both + "nonsense " + Marker + "\nfe80::1%eth0 b " + Marker + "\n10.0.0.2 C " + Marker + " \r\n"
	want := append(append([]Entry{}, registry...), entry("10.0.0.2", "c"))
	if d := cmp.Diff(want, Ours([]byte(text)), sameAddr); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// hold checks properties that hold for every text and all entries.
func hold(t *testing.T, text []byte, entries []Entry) {
	t.Helper()
	kept := bytes.Clone(text)
	bare := Remove(text)
	if !bytes.Contains(text, []byte(Marker)) && !bytes.Equal(bare, text) {
		t.Fatalf("without a line of ours %q becomes %q", text, bare)
	}
	out, _ := Apply(text, entries)
	if !bytes.Equal(kept, text) {
		t.Fatal("the text itself was changed")
	}
	if got := Remove(out); !bytes.Equal(got, bare) {
		t.Fatalf("%q with our lines is %q; without them %q, want %q", text, out, got, bare)
	}
	if !bytes.HasPrefix(out, bare) && !bytes.HasSuffix(out, bare) {
		t.Fatalf("%q: in %q our lines stand amid %q", text, out, bare)
	}
	if again, _ := Apply(out, entries); !bytes.Equal(again, out) {
		t.Fatalf("%q: %q a second time is %q", text, out, again)
	}
	if got := len(Ours(out)); got > len(entries) {
		t.Fatalf("%d lines of ours for %d entries: %q", got, len(entries), out)
	}
}

func FuzzApply(f *testing.F) {
	for _, text := range []string{"", "127.0.0.1 localhost", both, "a\n" + both + "b", "a\n" + line4 + "\r\n", Marker, "\n" + Marker + "\n"} {
		f.Add([]byte(text), "registry.shop.svc")
	}
	f.Fuzz(func(t *testing.T, text []byte, name string) {
		hold(t, text, []Entry{entry("10.96.0.5", name, name+".cluster.local"), entry("fd00::5", name)})
		hold(t, text, nil)
	})
}

// The machine's own file is one of the inputs.
func TestOwnFile(t *testing.T) {
	text, err := os.ReadFile("/etc/hosts")
	if err != nil {
		t.Skip(err)
	}
	hold(t, text, registry)
}
