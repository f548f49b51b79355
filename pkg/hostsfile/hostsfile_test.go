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
	note  = ", with the line break above"
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
		"no line break at the end":   {text: "127.0.0.1 localhost", want: "127.0.0.1 localhost\n" + line4 + note + "\n" + line6 + "\n"},
		"carriage returns":           {text: "127.0.0.1 localhost\r\n", want: "127.0.0.1 localhost\r\n" + both},
		"a carriage return ends it":  {text: "127.0.0.1 localhost\r", want: "127.0.0.1 localhost\r\n" + line4 + note + "\n" + line6 + "\n"},
		"NUL":                        {text: "a\x00b\n\x00", want: "a\x00b\n\x00\n" + line4 + note + "\n" + line6 + "\n"},
		"a line of a megabyte":       {text: long, want: long + "\n" + line4 + note + "\n" + line6 + "\n"},
		"ours already":               {text: "a\n" + both, want: "a\n" + both},
		"ours twice":                 {text: both + "a\n" + both, want: "a\n" + both},
		"ours, another address":      {text: "a\n" + strings.ReplaceAll(both, "10.96.0.5", "10.96.0.6"), want: "a\n" + both},
		"ours, edited":               {text: "a\nwhatever " + Marker + "\n", want: "a\n" + both},
		"ours, with carriage return": {text: "a\r\n" + line4 + "\r\n", want: "a\r\n" + both},
		"foreign lines behind ours":  {text: "a\n" + both + "b\n", want: "a\nb\n" + both},
		"the marker amid a line":     {text: "1.2.3.4 a " + Marker + " no\n", want: "1.2.3.4 a " + Marker + " no\n" + both},
		"half a line of ours": { // its names are now a foreign line's: nobody can tell whose it is
			text: "a\n10.96.0.5\tregistry.shop.svc registry", left: []string{"registry.shop.svc"},
			want: "a\n10.96.0.5\tregistry.shop.svc registry\n10.96.0.5\tregistry.shop.svc.cluster.local " + Marker + note +
				"\nfd00:10:96::5\tregistry.shop.svc.cluster.local " + Marker + "\n"},
		"half a pad":                         {text: "a\n" + Marker + "    ", want: "a\n" + both},
		"a line that begins with the marker": {text: "a\n" + Marker + " x\n", want: "a\n" + both},
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

// hold checks what holds for every text and all entries.
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
	if !bytes.HasPrefix(out, bare) {
		t.Fatalf("%q: in %q not all of %q stands before our lines", text, out, bare)
	}
	if again, _ := Apply(out, entries); !bytes.Equal(again, out) {
		t.Fatalf("%q: %q a second time is %q", text, out, again)
	}
	if got := len(Ours(out)); got > len(entries) {
		t.Fatalf("%d lines of ours for %d entries: %q", got, len(entries), out)
	}
	holdInPlace(t, text, entries)
	holdInPlace(t, out, nil)
}

// holdInPlace takes the steps, cut off after each of some numbers of bytes.
func holdInPlace(t *testing.T, text []byte, entries []Entry) {
	t.Helper()
	if len(text) > 1<<16 {
		return // the same, slowly
	}
	bare := Remove(text)
	want, _ := Apply(text, entries)
	steps, _ := InPlace(text, entries)
	state := bytes.Clone(text)
	for i, step := range steps {
		if step.Text == nil {
			state = state[:step.At]
			continue
		}
		for cut := 0; cut <= len(step.Text); cut++ {
			// Whoever is killed while all of ours goes may leave a part of a line that moves up. And the first bytes of a pad are not enough
			// to know it by, nor whether the line break is part of it: the kernel cuts at its pages.
			begins := bytes.HasPrefix(bytes.TrimPrefix(step.Text, []byte("\n")), []byte(Marker)) && cut <= len(broke)+1
			if begins || len(Ours(want)) == 0 {
				continue
			}
			half := overlay(state, step.At, step.Text[:cut])
			// A note that the break is ours may be lost in the cut, and the break then stays.
			noted := bytes.Contains(text, []byte(broke))
			if got := Remove(half); !bytes.Equal(got, bare) && !(noted && bytes.Equal(bytes.TrimSuffix(got, []byte("\n")), bytes.TrimSuffix(bare, []byte("\n")))) {
				t.Fatalf("from %q, cut after %d bytes of step %d: %q, without ours %q, want %q", text, cut, i, half, got, bare)
			}
		}
		state = overlay(state, step.At, step.Text)
	}
	if got := Remove(state); !bytes.Equal(got, bare) {
		t.Fatalf("from %q: the steps make %q, without ours %q, want %q", text, state, got, bare)
	}
	if d := cmp.Diff(Ours(want), Ours(state), sameAddr); d != "" {
		t.Fatalf("from %q: the steps make %q (-want +got):\n%s", text, state, d)
	}
	if again, _ := InPlace(state, entries); again != nil {
		t.Fatalf("from %q: %q is changed a second time: %v", text, state, again)
	}
}

func overlay(state []byte, at int64, text []byte) []byte {
	out := bytes.Clone(state)
	if end := int(at) + len(text); end > len(out) {
		out = append(out, make([]byte, end-len(out))...)
	}
	copy(out[at:], text)
	return out
}

// No byte before our first line is written, nor one of a foreign line behind it.
func TestInPlace(t *testing.T) {
	base := "127.0.0.1 localhost\n"
	for name, text := range map[string]string{
		"none yet": base, "no line break": "127.0.0.1 localhost", "another address": base + strings.ReplaceAll(both, "10.96.0.5", "10.96.0.66"),
		"one line": base + line4 + "\n", "none but ours": both + "x", "foreign lines behind": base + line4 + "\n192.0.2.1 printer\n", "empty": "",
		"ours twice": both + base + both, "noted, behind it more": "a\n" + line4 + note + "\nb",
	} {
		t.Run(name, func(t *testing.T) {
			holdInPlace(t, []byte(text), registry)
			holdInPlace(t, []byte(text), nil)
			steps, _ := InPlace([]byte(text), registry)
			for _, s := range steps {
				for i := range s.Text {
					at := int(s.At) + i
					if at >= len(text) || text[at] == s.Text[i] {
						continue
					}
					begin := strings.LastIndexByte(text[:at], '\n') + 1
					line, _, _ := strings.Cut(text[begin:], "\n")
					if is, _ := marked([]byte(line)); !is {
						t.Fatalf("byte %d of a foreign line is written: %q", at, line)
					}
				}
			}
		})
	}
	if steps, _ := InPlace([]byte(base+both+"192.0.2.1 printer\n"), registry); steps != nil {
		t.Errorf("nothing to do: %v", steps)
	}
}

func TestCompare(t *testing.T) {
	a, b, c := entry("10.0.0.2", "a"), entry("fd00::1", "a"), entry("10.0.0.1", "b")
	if Compare(a, b) >= 0 || Compare(b, c) >= 0 || Compare(a, a) != 0 || Compare(c, a) <= 0 {
		t.Error("wrong order")
	}
}

func FuzzApply(f *testing.F) {
	for _, text := range []string{"", "127.0.0.1 localhost", both, "a\n" + both + "b", "a\n" + line4 + note + "\r\n", Marker, "\n" + Marker + "\n" + broke + "\n"} {
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
