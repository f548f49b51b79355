package server_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	mdns "github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
)

// TestCacheBehindPlugins: plugins before the cache that change or read answers do so for hits too.
func TestCacheBehindPlugins(t *testing.T) {
	up, again := newForgetful(t, address("10.0.0.1"))
	cfg := config(t, up)
	cfg.Snippets = map[string]string{".": "rewrite name suffix .old.example. .example.org. answer auto"}
	start(t, cfg)
	at := netip.AddrPortFrom(cfg.Addresses[0], cfg.Port).String()
	for range 3 {
		m := ask(t, "udp", at, question("a.old.example.", mdns.TypeA))
		if len(m.Answer) != 1 || m.Answer[0].Header().Name != "a.old.example." || m.Question[0].Name != "a.old.example." {
			t.Errorf("rewritten: %v", m)
		}
		again.Store(true)
		m = ask(t, "udp", at, question("a.example.org.", mdns.TypeA))
		if len(m.Answer) != 1 || m.Answer[0].Header().Name != "a.example.org." {
			t.Errorf("as it is: %v", m)
		}
	}
}

// TestCacheOverReloads: over twenty reloads, a block that answers as before keeps its entries, and no client gets an answer of a block's
// old upstream.
func TestCacheOverReloads(t *testing.T) {
	up, again := newForgetful(t, func(q *mdns.Msg) *mdns.Msg {
		m := address("10.0.0.1")(q)
		for _, rr := range m.Answer {
			rr.Header().Ttl = 3000 // nothing ends in the test, however busy the machine is
		}
		return m
	})
	one, two := newUpstream(t, address("10.1.0.1")), newUpstream(t, address("10.1.0.2"))
	cfg := config(t, up)
	cfg.StubDomains = map[string][]nameserver.Address{"corp.example": servers(one.addr)}
	cfg.LastResort = servers(up.addr)
	s := start(t, cfg)
	at := netip.AddrPortFrom(cfg.Addresses[0], cfg.Port).String()
	names := []string{"a.cluster.local.", "b.example.org."}
	for _, n := range names {
		wantA(t, ask(t, "udp", at, question(n, mdns.TypeA)), "10.0.0.1")
	}
	wantA(t, ask(t, "udp", at, question("www.corp.example.", mdns.TypeA)), "10.1.0.1")
	again.Store(true)
	hits := byFamily(coreDNSCounts(t))["cache_hits_total"]
	for i := range 20 {
		next := cfg
		next.StubDomains = map[string][]nameserver.Address{"corp.example": servers(one.addr), fmt.Sprintf("s%d.example", i): servers(two.addr)}
		if i%2 == 0 {
			next.StubDomains["corp.example"] = servers(two.addr)
		}
		if i%3 == 0 { // a redirect comes, and goes
			next.Cluster = append(slices.Clone(next.Cluster), servers("127.0.0.9:5353")...)
			next.LastResort = append(slices.Clone(next.LastResort), servers("127.0.0.9:5353")...)
		}
		next.Queries = []corefile.Queries{corefile.QueriesOff, corefile.QueriesErrors}[i%2]
		next.Cache.Entries = 2000 + i
		if err := s.Restart(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			wantA(t, ask(t, "udp", at, question(n, mdns.TypeA)), "10.0.0.1")
		}
		wantA(t, ask(t, "udp", at, question("www.corp.example.", mdns.TypeA)), []string{"10.1.0.2", "10.1.0.1"}[i%2])
	}
	if n := byFamily(coreDNSCounts(t))["cache_hits_total"] - hits; n < 40 {
		t.Errorf("CoreDNS's registry has %v hits after the reloads", n)
	}
}
