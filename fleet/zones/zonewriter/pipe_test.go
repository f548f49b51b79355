package zonewriter

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/testutil"
)

const origin = "shared.example."

var me, other = zone.Identity{Cluster: "cluster1", Instance: "i"}, zone.Identity{Cluster: "cluster2", Instance: "j"}

// newPublisher is me's, in the zone origin.
func newPublisher(t *testing.T, o Options) *Publisher {
	t.Helper()
	o.Zone, o.Server, o.Identity = origin, "192.0.2.1:53", me
	p, err := New(o)
	testutil.Must(t, err)
	return p
}

func publication(host, address string) zone.Publication {
	return zone.Publication{Host: host + "." + origin, Strategy: zone.Simple, TTL: 60, Addresses: []netip.Addr{netip.MustParseAddr(address)}}
}

func soa(t *testing.T, serial int) dns.RR {
	t.Helper()
	rr, err := dns.NewRR(fmt.Sprintf("%s 60 IN SOA ns.%[1]s host.%[1]s %d 60 60 600 60", origin, serial))
	testutil.Must(t, err)
	return rr
}

// parsed is the zone with these RRs.
func parsed(t *testing.T, serial int, more ...dns.RR) *zone.State {
	t.Helper()
	s, err := zone.Parse(origin, append(more, soa(t, serial)))
	testutil.Must(t, err)
	return s
}

// Published are the RRs that a cluster publishes for a host if it is the only cluster there.
func Published(t *testing.T, who zone.Identity, p zone.Publication) []dns.RR {
	t.Helper()
	return parsed(t, 1).Plan(zone.Writer{Identity: who}, zone.Memory{}, p).Message.Changes
}
