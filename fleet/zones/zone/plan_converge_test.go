package zone

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// Clusters that all want another TTL get it, whatever the order of their messages is, and write address changes meanwhile.
func TestTTLConverges(t *testing.T) {
	p := &primary{t, map[string][]dns.RR{}}
	ids := []string{"cluster1", "cluster2", "cluster3"}
	for i, id := range ids {
		p.write(id, edit(www, func(p *Publication) { p.Addresses = many(3)[i : i+1] }))
	}
	for i, id := range ids {
		want := edit(www, func(p *Publication) { p.TTL, p.Addresses = 300, many(6)[i+3:i+4] })
		if noted := len(p.write(id, want).Notes) > 0; noted != (i < 2) {
			t.Errorf("%s: a disagreement is noted: %v", id, noted)
		}
		if !slices.Contains(p.read().addresses(www.Host), want.Addresses[0]) {
			t.Errorf("%s: the address waits for the TTL", id)
		}
	}
	if h := p.read().Hosts[www.Host]; h.TTL != 300 || len(h.Addresses) != 3 {
		t.Errorf("%+v", h)
	}
	for _, rr := range p.sets[www.Host] {
		if rr.Header().Ttl != 300 {
			t.Errorf("%s", rr)
		}
	}
}

// Clusters that all want another strategy get it, whatever the order of their messages is, and write address changes meanwhile. A cluster
// that does not publish the host waits for them.
func TestStrategyConverges(t *testing.T) {
	for _, from := range []Strategy{Simple, LoadBalanced} {
		to := map[Strategy]Strategy{Simple: LoadBalanced, LoadBalanced: Simple}[from]
		of := func(s Strategy, addresses []netip.Addr) Publication {
			return edit(wwwB, func(p *Publication) { p.Addresses = addresses }).under(s)
		}
		p := &primary{t, map[string][]dns.RR{}}
		ids, all := []string{"cluster1", "cluster2", "cluster3"}, many(7)
		for i, id := range ids {
			p.write(id, of(from, all[i:i+1]))
		}
		for i, id := range ids {
			late := Writer{Identity: Identity{"cluster4", "x"}}
			if st := p.read().Plan(late, Memory{}, of(to, all[6:])); st.Conflict == nil || st.Conflict.Reason != ConflictingStrategy {
				t.Errorf("%s: a new cluster does not wait: %+v", to, st)
			}
			if noted := len(p.write(id, of(to, all[i+3:i+4])).Notes) > 0; noted != (i < 2) {
				t.Errorf("%s: a disagreement is noted: %v", id, noted)
			}
			if !slices.Contains(p.read().addresses(www.Host), all[i+3]) {
				t.Errorf("%s: the address waits for the strategy", id)
			}
		}
		for i, id := range ids { // what comes with the strategy: names of regions and clusters, or none
			p.write(id, of(to, all[i+3:i+4]))
		}
		p.write("cluster4", of(to, all[6:]))
		h := p.read().Hosts[www.Host]
		if h.Strategy != to || len(h.Addresses) != 4 || len(h.Levels) != map[Strategy]int{Simple: 0, LoadBalanced: 5}[to] {
			t.Errorf("%+v", h)
		}
		for _, id := range append(ids, "cluster4") {
			p.write(id, Publication{Host: www.Host})
		}
		if left := p.records(); len(left) > 0 {
			t.Errorf("left over: %v", left)
		}
	}
}

// A claim of an older version has no TTL. Its cluster stops writing if the host's TTL is not its own, so the zone's TTL stays.
func TestTTLOfOlderVersion(t *testing.T) {
	p := &primary{t, map[string][]dns.RR{}}
	for _, rr := range compose(origin, claimOf("cluster2", www)) {
		if x, ok := rr.(*dns.TXT); ok && strings.HasPrefix(x.Hdr.Name, "www.cluster2.") {
			x.Txt = slices.DeleteFunc(x.Txt, func(s string) bool { return s == "ttl=60" })
		}
		p.add(rr)
	}
	st := p.write("cluster1", edit(www, func(p *Publication) { p.TTL = 300 }))
	if len(st.Notes) != 1 || !strings.Contains(st.Notes[0].Message, "60 by cluster2; 300 by cluster1") {
		t.Fatalf("%+v", st)
	}
	if h := p.read().Hosts[www.Host]; h.TTL != 60 || len(h.Owners) != 2 {
		t.Errorf("%+v", h)
	}
}
