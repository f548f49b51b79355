package server_test

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	mdns "github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestCacheOverReloads: over ten reloads, a block that answers as before keeps its entries, and no client gets an answer of a block's
// old upstream, on a socket and a connection that stay while another address comes and goes. The fast path goes and comes, and both paths
// use the entries and are counted.
func TestCacheOverReloads(t *testing.T) {
	up, again := newForgetful(t, address("10.0.0.1"))
	one, two := newUpstream(t, address("10.1.0.1")), newUpstream(t, address("10.1.0.2"))
	cfg := config(t, up)
	cfg.FastPath, cfg.LastResort, cfg.Port = false, servers(up.addr), testutil.FreePort(t, "127.0.0.1", "127.0.0.2")
	cfg.StubDomains = map[string][]nameserver.Address{"corp.example": servers(one.addr)}
	s := start(t, cfg)
	stub, kept := "10.1.0.1", map[string]*mdns.Conn{}
	for _, network := range []string{"tcp", "udp"} { // a connection without a first query is closed after 3 s
		conn, err := net.Dial(network, addressOf(cfg))
		testutil.Must(t, err)
		defer conn.Close()
		kept[network] = &mdns.Conn{Conn: conn}
	}
	all := func() {
		t.Helper()
		for _, network := range []string{"tcp", "udp"} {
			testutil.Must(t, kept[network].WriteMsg(question("b.example.org.", mdns.TypeA)))
			m, err := kept[network].ReadMsg()
			testutil.Must(t, err)
			wantA(t, m, "10.0.0.1")
			for name, want := range map[string]string{"a.cluster.local.": "10.0.0.1", "b.example.org.": "10.0.0.1", "www.corp.example.": stub} {
				wantA(t, testutil.Exchange(t, network, addressOf(cfg), question(name, mdns.TypeA)), want)
			}
			again.Store(true)
		}
	}
	all()
	hits := byFamily(coreDNSCounts(t))["cache_hits_total"]
	for i := range 10 {
		next := cfg
		next.FastPath = i%4 < 2
		stub = []string{"10.1.0.2", "10.1.0.1"}[i%2]
		next.StubDomains = map[string][]nameserver.Address{"corp.example": servers([]string{two.addr, one.addr}[i%2])}
		if i%3 == 0 { // a redirect comes, and goes
			next.Addresses = append(slices.Clone(next.Addresses), netip.MustParseAddr("127.0.0.2"))
			next.Cluster = append(slices.Clone(next.Cluster), servers("127.0.0.9:5353")...)
			next.LastResort = append(slices.Clone(next.LastResort), servers("127.0.0.9:5353")...)
		}
		next.Queries, next.Cache.Entries = []corefile.Queries{corefile.QueriesOff, corefile.QueriesErrors}[i%2], 2000+i
		testutil.Must(t, s.Restart(t.Context(), next))
		all()
	}
	if n := byFamily(coreDNSCounts(t))["cache_hits_total"] - hits; n < 40 {
		t.Errorf("CoreDNS's registry has %v hits after the reloads", n)
	}
}
