package authoritative_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/edge/authoritative"
	"github.com/neardns/neardns/fleet/edge/healthcheck"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/testutil"
)

// A cluster without a health check whose heartbeat stands still for six periods is answered no more, unless there is no other or most
// clusters stand still. It is back with its next heartbeat. A health check that finds it well counts for more.
func TestSilentCluster(t *testing.T) {
	tcp := &zone.Health{Protocol: zone.TCP, Port: 80}
	well := func(_ string, checks map[string][]healthcheck.Check) map[healthcheck.Check]authoritative.Target {
		out := map[healthcheck.Check]authoritative.Target{}
		for _, check := range every(checks) {
			out[check] = health(true)
		}
		return out
	}
	pub := func(s zone.Strategy, h *zone.Health, a ...string) zone.Publication {
		return zone.Publication{Host: "www." + origin, Strategy: s, Weight: 1, Health: h, Addresses: addresses(a...)}
	}
	alias := zone.Publication{Host: "www." + origin, Strategy: zone.LoadBalanced, Weight: 1, Target: "lb.example.com."}
	one, two, three := "192.0.2.1", "192.0.2.2", "192.0.2.3"
	for name, tt := range map[string]struct {
		published []zone.Publication
		silent    int // clusters, from the first on
		answered  string
	}{
		"one of two":                 {[]zone.Publication{pub(zone.Simple, nil, one), pub(zone.Simple, nil, two)}, 1, two},
		"one of two, with a choice":  {[]zone.Publication{pub(zone.LoadBalanced, nil, one), pub(zone.LoadBalanced, nil, two)}, 1, two},
		"two of three":               {[]zone.Publication{pub(zone.Simple, nil, one), pub(zone.Simple, nil, two), pub(zone.Simple, nil, three)}, 2, one + " " + two + " " + three},
		"the only one of the host":   {[]zone.Publication{pub(zone.Simple, nil, one), {Host: "mail." + origin, Strategy: zone.Simple, Addresses: addresses(two)}}, 1, one},
		"it is well":                 {[]zone.Publication{pub(zone.Simple, tcp, one), pub(zone.Simple, nil, two)}, 1, one + " " + two},
		"an address of two clusters": {[]zone.Publication{pub(zone.Simple, nil, one), pub(zone.Simple, nil, one, two)}, 1, one + " " + two},
		"a hostname":                 {[]zone.Publication{alias, pub(zone.LoadBalanced, nil, two)}, 1, two},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := authoritative.New(authoritative.Options{})
				s.SetDraw(func() uint64 { return 0 }) // the first of the clusters that can be chosen
				take := s.Taker(origin, well)
				look := func(n int, silent int) []string { // at the zone with the nth heartbeat of all but the silent
					z := append(base(t), published(tt.published...)...)
					for i := range tt.published {
						counter := 1
						if i >= silent {
							counter = n
						}
						z = append(z, rrs(t, fmt.Sprintf("cluster%02d._neardns 60 IN TXT v=1 n=%d inst=one every=60\n", i, counter))...)
					}
					testutil.Must(t, take(z))
					return s.Current(origin)
				}
				answer := func() string { return said(put(t, s, udp("10.1.0.1"), question("www."+origin, dns.TypeA))) }
				look(1, 0)
				all := answer()
				for n := range zone.RemoveAfter {
					if got := answer(); got != all {
						t.Errorf("after %d periods: %s, not %s", n, got, all)
					}
					time.Sleep(time.Minute)
					look(n+2, tt.silent)
				}
				if got := answer(); got != tt.answered {
					t.Errorf("after six periods: %s, not %s", got, tt.answered)
				}
				if silent, got := look(100, 0), answer(); silent != nil || got != all {
					t.Errorf("after its next heartbeat: %s, not %s; silent: %v", got, all, silent)
				}
			})
		})
	}
}
