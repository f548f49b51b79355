package zonewriter

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/zone"
)

// Published are the RRs that a cluster publishes for a host if it is the only cluster there.
func Published(t *testing.T, origin string, who zone.Identity, p zone.Publication) []dns.RR {
	t.Helper()
	soa, err := dns.NewRR(fmt.Sprintf("%s 60 IN SOA ns.%[1]s host.%[1]s 1 60 60 600 60", origin))
	if err != nil {
		t.Fatal(err)
	}
	s, err := zone.Parse(origin, []dns.RR{soa})
	if err != nil {
		t.Fatal(err)
	}
	st := s.Plan(zone.Writer{Identity: who}, zone.Memory{}, p)
	return st.Message.Changes
}

// BIND with inline-signing accepts a message, and answers from the zone as it was until the new one is signed. That is not NotPermitted. A
// server that never has the change has left it out, whether its serial has changed or not.
func TestReadBack(t *testing.T) {
	const origin = "shared.example."
	for name, c := range map[string]struct {
		moved, whole int // the number of the read that finds another writer's change, and of the read that finds this one
		refused      bool
		looks        int
	}{
		"at once":                              {whole: 0, looks: 0},
		"signed at the third look":             {moved: 3, whole: 3, looks: 3},
		"signed long after":                    {moved: tries + 3, whole: tries + 3, looks: tries + 3},
		"another's change is signed before it": {moved: 1, whole: 5, looks: 5},
		"left out of a message":                {moved: 1, whole: 1000, refused: true, looks: tries},
		"left out whole":                       {moved: 1000, whole: 1000, refused: true, looks: 2 * tries},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				me := zone.Identity{Cluster: "cluster1", Instance: "i"}
				p, err := New(Options{Zone: origin, Server: "192.0.2.1:53", Identity: me})
				if err != nil {
					t.Fatal(err)
				}
				want := zone.Publication{Host: "www." + origin, Strategy: zone.Simple, TTL: 60, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
				read := func(serial int, more ...dns.RR) *zone.State {
					soa, err := dns.NewRR(fmt.Sprintf("%s 60 IN SOA ns.%[1]s host.%[1]s %d 60 60 600 60", origin, serial))
					if err != nil {
						t.Fatal(err)
					}
					s, err := zone.Parse(origin, append(more, soa))
					if err != nil {
						t.Fatal(err)
					}
					return s
				}
				p.state = read(1)
				j := &job{Step: p.state.Plan(zone.Writer{Identity: me}, zone.Memory{}, want), host: &host{}, taken: true, serial: 1}
				looks := 0
				see := func() {
					switch {
					case looks >= c.whole:
						p.state = read(3, Published(t, origin, me, want)...)
					case looks >= c.moved:
						p.state = read(2)
					}
				}
				see()
				if !p.readBack(t.Context(), []*job{j}, func() bool {
					looks++
					see()
					return true
				}) {
					t.Error("the zone is not known")
				}
				p.verify([]*job{j})
				if got := j.host.status.Conflict; (got != nil) != c.refused || looks != c.looks {
					t.Errorf("%d looks, want %d; %+v", looks, c.looks, got)
				}
			})
		})
	}
}
