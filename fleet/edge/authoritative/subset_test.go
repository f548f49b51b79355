package authoritative_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/edge/authoritative"
	"github.com/neardns/neardns/fleet/edge/healthcheck"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestSubset is the invariant: whatever clusters publish and the client, an edge's answer is a non-empty part of the addresses that the
// zone holds for the host, of a host that a plain server answers for; and all else is as a plain server's.
func TestSubset(t *testing.T) {
	rng := rand.New(rand.NewPCG(15, 11))
	var asked, narrowed int
	for round := range 120 {
		records := append(randomZone(t, rng), base(t)...)
		state, err := zone.Parse(origin, records)
		testutil.Must(t, err)
		s, reference := serveWatched(t, authoritative.Options{}, records, sick(rng)), plain(t, records)
		for _, name := range append(randomHosts(), "x."+origin, "y."+origin, "klb.a."+origin, "q.klb.a."+origin, "q.a."+origin, "q.q.a."+origin, "q."+origin, "f.a."+origin, "q.child."+origin, "q.e."+origin) {
			for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT, dns.TypeNS} {
				q := question(name, qtype)
				want, _, _, result := reference.Lookup(t.Context(), request.Request{W: &writer{from: udp("10.1.0.1")}, Req: q, Zone: origin}, name)
				for _, from := range []string{"10.1.0.1", "10.2.0.1", "10.3.0.1", "10.9.0.1"} {
					m := put(t, s, udp(from), q.Copy())
					asked++
					ours, theirs := held(m.Answer, qtype), held(want, qtype)
					switch {
					case len(theirs) == 0 && len(ours) == 0:
						if len(m.Answer) > 0 && !aliasedBy(m.Answer, want) && !hasTarget(m.Answer) {
							t.Fatalf("round %d: %s %s: %v, a plain server says %v", round, name, dns.TypeToString[qtype], m.Answer, want)
						}
					case len(ours) == 0 && !hasTarget(m.Answer):
						t.Fatalf("round %d: %s %s from %s: no address, a plain server has %v (%d)", round, name, dns.TypeToString[qtype], from, theirs, result)
					}
					for _, a := range ours {
						h := hostOf(state, name, want)
						if !slices.Contains(theirs, a) && (h == nil || !slices.Contains(h.Held(), netip.MustParseAddr(a))) {
							t.Fatalf("round %d: %s %s from %s: %s, which is none of %v\n%v\n%v\n%+v", round, name, dns.TypeToString[qtype], from, a, theirs, m.Answer, want, h)
						}
					}
					if len(ours) < len(theirs) {
						narrowed++
					}
				}
			}
		}
	}
	if asked < 30_000 || narrowed < 1_000 {
		t.Errorf("%d questions, %d of them answered with less than a plain server: the test shows little", asked, narrowed)
	}
}

// randomHosts are the hosts of a random zone.
func randomHosts() []string {
	return []string{origin, "a." + origin, "b.a." + origin, "*.a." + origin, "*." + origin, "c.child." + origin, "e." + origin}
}

// randomZone is what clusters publish by chance, without the zone's own records, and with some of it missing or next to other records.
func randomZone(t testing.TB, rng *rand.Rand) []dns.RR {
	t.Helper()
	pick := func(from ...string) string { return from[rng.IntN(len(from))] }
	hosts := randomHosts()
	strategies, aliased := map[string]zone.Strategy{}, map[string]bool{}
	for _, h := range hosts {
		strategies[h] = []zone.Strategy{zone.Simple, zone.LoadBalanced, zone.LoadBalanced}[rng.IntN(3)]
	}
	var ps []zone.Publication
	for range rng.IntN(12) {
		p := zone.Publication{Host: hosts[rng.IntN(len(hosts))], Weight: uint32(rng.IntN(3)), Health: &zone.Health{Protocol: zone.TCP, Port: 443}}
		p.Strategy = strategies[p.Host]
		for range 1 + rng.IntN(3) {
			p.Addresses = append(p.Addresses, addresses(pick("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "2001:db8::1", "2001:db8::2"))...)
		}
		if p.Strategy == zone.LoadBalanced {
			p.Geo, p.DefaultGeo = pick("", "ie", "de", "geo-eu", "us-ca"), false
			p.DefaultGeo = p.Geo != "" && rng.IntN(4) == 0
			if rng.IntN(6) == 0 {
				p.Addresses, p.Target, aliased[p.Host] = nil, "lb.cloud.example.", true
			}
		}
		ps = append(ps, p)
	}
	records := published(ps...)
	// A peer's text, or half of a write: records come and go without their bookkeeping.
	for range rng.IntN(6) {
		if len(records) > 0 {
			at := rng.IntN(len(records))
			records = slices.Delete(records, at, at+1)
		}
	}
	for _, line := range []string{"child 60 IN NS ns.child\nns.child 60 IN A 198.51.100.1\n", "x 60 IN CNAME a\n", "y 60 IN CNAME e\n",
		"f.a 60 IN A 198.51.100.7\n", "e 60 IN A 198.51.100.9\n"} {
		if rng.IntN(2) == 0 {
			records = append(records, rrs(t, line)...)
		}
	}
	return records
}

// sick is a Watch by which targets are sick by chance.
func sick(rng *rand.Rand) authoritative.Watch {
	return func(_ string, checks map[string][]healthcheck.Check) map[healthcheck.Check]authoritative.Target {
		out := map[healthcheck.Check]authoritative.Target{}
		for _, c := range every(checks) {
			if rng.IntN(3) > 0 {
				out[c] = health(rng.IntN(2) == 0)
			}
		}
		return out
	}
}

// health is a target that is well or not.
type health bool

func (h health) Well() bool { return bool(h) }

// held are the addresses in an answer.
func held(rrs []dns.RR, qtype uint16) (out []string) {
	for _, rr := range rrs {
		if rr.Header().Rrtype == qtype && (qtype == dns.TypeA || qtype == dns.TypeAAAA) {
			out = append(out, strings.TrimPrefix(rr.String(), rr.Header().String()))
		}
	}
	return out
}

func hasTarget(rrs []dns.RR) bool {
	return slices.ContainsFunc(rrs, func(rr dns.RR) bool {
		c, ok := rr.(*dns.CNAME)
		return ok && c.Target == "lb.cloud.example."
	})
}

// aliasedBy reports whether two answers have the same records that are no addresses.
func aliasedBy(a, b []dns.RR) bool {
	return slices.EqualFunc(a, b, func(x, y dns.RR) bool { return x.String() == y.String() })
}

// hostOf is the host that a name's answer comes from.
func hostOf(s *zone.State, name string, answer []dns.RR) *zone.Host {
	for _, rr := range answer {
		if c, ok := rr.(*dns.CNAME); ok {
			name = c.Target
		}
	}
	if h := s.Hosts[name]; h != nil {
		return h
	}
	for off, end := dns.NextLabel(name, 0); !end; off, end = dns.NextLabel(name, off) {
		if h := s.Hosts["*."+name[off:]]; h != nil {
			return h
		}
	}
	return nil
}
