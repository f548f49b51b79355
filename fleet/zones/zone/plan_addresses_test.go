package zone

import (
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// BIND's default check-names refuses an address at a name that is no hostname (RFC 1123, a leading * apart).
func TestAddressesAreAtHostnames(t *testing.T) {
	for _, host := range []string{"www.example.org.", origin, "*.x.example.org.", "*." + origin} {
		for _, rr := range compose(origin, claimOf("cluster1", edit(wwwB, func(p *Publication) { p.Host = host }))) {
			if name := rr.Header().Name; rr.Header().Rrtype == dns.TypeA && checkName(strings.TrimPrefix(name, "*.")) != nil {
				t.Errorf("%s: an address at %s", host, name)
			}
		}
	}
}

// A wildcard's level of an older version is read, and moves with the next message. An older cluster's stays.
func TestWildcardLevelMoves(t *testing.T) {
	for _, host := range []string{"*.x.example.org.", "*." + origin} {
		want := edit(wwwB, func(p *Publication) { p.Host = host })
		p := &primary{t, map[string][]dns.RR{}}
		for _, id := range []string{"cluster1", "cluster2"} {
			c := claimOf(id, edit(want, func(p *Publication) { p.Addresses = addrs("192.0.2." + id[7:]) }))
			for _, rr := range compose(origin, c) {
				rr.Header().Name = strings.Replace(rr.Header().Name, ".klb.klb.", ".klb._any.", 1)
				p.add(rr)
			}
		}
		if h := p.read().Hosts[host]; len(h.Levels["ie"]) != 2 || len(h.Levels["cluster1"]) != 1 {
			t.Fatalf("%+v", h)
		}
		if st := p.write("cluster1", want); p.read().Dropped(&st) != nil {
			t.Fatalf("%+v", st)
		}
		n, s := names{origin}, p.read()
		for name, count := range map[string]int{n.level(host, "ie"): 1, n.level(host, "cluster1"): 1, n.oldLevel(host, "cluster1"): 0, n.oldLevel(host, "ie"): 1,
			n.oldLevel(host, "cluster2"): 1, host: 2} {
			if len(s.addresses(name)) != count {
				t.Errorf("%s has %v, not %d addresses", name, s.addresses(name), count)
			}
		}
		if again := s.Plan(self, Memory{}, want); !again.Done() {
			t.Errorf("%+v", again)
		}
		for _, id := range []string{"cluster1", "cluster2"} {
			p.write(id, Publication{Host: host})
		}
		if left := p.records(); len(left) > 0 {
			t.Errorf("left over: %v", left)
		}
	}
}

// A host that a person made is as before when the clusters that published it are gone, in whatever order they leave: TTLs too, and the
// address that a cluster published as well. With adopt that address goes.
func TestForeignAddressesStay(t *testing.T) {
	byHand := rrs(t, "www.example.org. 300 IN A 192.0.2.10", "www.example.org. 300 IN A 192.0.2.11", "www.example.org. 600 IN AAAA 2001:db8::1")
	for _, adopt := range []bool{false, true} {
		for _, first := range []string{"cluster1", "cluster2"} {
			p := &primary{t, map[string][]dns.RR{}}
			for _, rr := range byHand {
				p.add(rr)
			}
			change := func(id string, pub Publication) {
				t.Helper()
				st, after := p.write(id, pub), p.read()
				again := after.Plan(Writer{Identity: Identity{id, "x"}}, Memory{}, pub)
				if after.Dropped(&st) != nil || after.Ignored != 0 || !again.Done() {
					t.Fatalf("%s is not at rest: %+v", id, again)
				}
				if noted := slices.ContainsFunc(st.Notes, func(c Conflict) bool {
					return c.Reason == ForeignAddresses && strings.Contains(c.Message, "192.0.2.11") && strings.Contains(c.Message, "192.0.2.10") == !adopt
				}); noted == pub.Empty() {
					t.Errorf("%s: %+v", id, st.Notes)
				}
			}
			mine := edit(www, func(p *Publication) { p.Addresses, p.Adopt = addrs("192.0.2.10", "192.0.2.50"), adopt })
			change("cluster1", mine)
			change("cluster2", edit(mine, func(p *Publication) { p.Addresses = addrs("192.0.2.10", "192.0.2.60", "2001:db8::2") }))
			change(first, Publication{Host: www.Host})
			for _, id := range []string{"cluster1", "cluster2"} {
				if id != first {
					change(id, Publication{Host: www.Host})
				}
			}
			want := byHand
			if adopt {
				want = byHand[1:]
			}
			have := p.records()
			if len(have) != len(want) || slices.ContainsFunc(want, func(w dns.RR) bool {
				return !slices.ContainsFunc(have, func(h dns.RR) bool { return h.String() == w.String() })
			}) {
				t.Errorf("adopt %v, %s first: %v", adopt, first, have)
			}
		}
	}
}

// An address that one cluster published as a person's becomes the clusters' when a record has adopt.
func TestAdoptLater(t *testing.T) {
	p := &primary{t, map[string][]dns.RR{}}
	p.add(rrs(t, "www.example.org. 300 IN A 192.0.2.1")[0])
	for _, adopt := range []bool{false, true} {
		if st := p.write("cluster1", edit(www, func(p *Publication) { p.Adopt = adopt })); st.Message.Empty() {
			t.Fatalf("adopt %v: %+v", adopt, st)
		}
	}
	p.write("cluster1", Publication{Host: www.Host})
	if left := p.records(); len(left) > 0 {
		t.Errorf("%v", left)
	}
}
