package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

func addrs(texts ...string) (out []netip.Addr) {
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

func records(t *testing.T, text string) (out []dns.RR) {
	t.Helper()
	p := dns.NewZoneParser(strings.NewReader(text), "z.", "")
	for rr, ok := p.Next(); ok; rr, ok = p.Next() {
		out = append(out, rr)
	}
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// The judge knows the whole zone of two clusters that share one address, and misses no fault in it.
func TestJudge(t *testing.T) {
	const zone = `
z. 60 SOA ns1 h 1 2 3 4 5
z. 60 NS ns1.z.
ns1.z. 60 A 192.0.2.53
aaaaaaaa._neardns.z. 60 TXT beat
app.z. 60 A 192.0.2.1
app.z. 60 A 192.0.2.2
app.z. 60 AAAA 2001:db8::1
app.aaaaaaaa._neardns.z. 60 TXT claim
app.bbbbbbbb._neardns.z. 60 TXT claim
app.o._shared._neardns.z. 60 TXT aaaaaaaa
app.o._shared._neardns.z. 60 TXT bbbbbbbb
app.s._shared._neardns.z. 60 TXT strategy
192-0-2-1.app.r._shared._neardns.z. 60 TXT aaaaaaaa
192-0-2-2.app.r._shared._neardns.z. 60 TXT aaaaaaaa
192-0-2-2.app.r._shared._neardns.z. 60 TXT bbbbbbbb
2001-db8--1.app.r._shared._neardns.z. 60 TXT bbbbbbbb
`
	want := expected("z.", []said{
		{Cluster: "aaaaaaaa", Host: "app.z.", Addresses: addrs("192.0.2.1", "192.0.2.2")},
		{Cluster: "bbbbbbbb", Host: "app.z.", Addresses: addrs("192.0.2.2", "2001:db8::1")},
		{Cluster: "cccccccc", Host: "app.z."}, // reports nothing
	})
	if lost, left := differences(want, held("z.", records(t, zone))); len(lost)+len(left) > 0 {
		t.Errorf("a good zone: lost %v, left over %v", lost, left)
	}
	lines := strings.Split(strings.TrimSpace(zone), "\n")
	for i := 4; i < len(lines); i++ {
		without := strings.Join(append(append([]string{}, lines[:i]...), lines[i+1:]...), "\n") + "\n"
		if lost, _ := differences(want, held("z.", records(t, without))); len(lost) == 0 {
			t.Errorf("without %q: nothing is lost", lines[i])
		}
	}
	for _, more := range []string{"app.z. 60 A 192.0.2.9", "old.z. 60 CNAME app.z.", "app.cccccccc._neardns.z. 60 TXT claim", "192-0-2-9.app.r._shared._neardns.z. 60 TXT x"} {
		if _, left := differences(want, held("z.", records(t, zone+more+"\n"))); len(left) != 1 {
			t.Errorf("with %q: left over %v", more, left)
		}
	}
	if lost, _ := differences(want, held("z.", records(t, zone+"app.o._shared._neardns.z. 60 TXT third\n"))); len(lost) != 1 {
		t.Errorf("with an owner too many: %v", lost)
	}
}

func TestLevels(t *testing.T) {
	got := expected("z.", []said{{Cluster: "aaaaaaaa", Host: "app.z.", Balanced: true, Geo: "geo-eu", Addresses: addrs("192.0.2.1")}})
	for _, name := range []string{"app.z. A", "geo-eu.klb.app.z. A", "aaaaaaaa.klb.app.z. A"} {
		if d := cmp.Diff([]string{"192.0.2.1"}, got[name]); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}
