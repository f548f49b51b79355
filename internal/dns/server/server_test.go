package server_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	mdns "github.com/miekg/dns"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/internal/dns/limit"
	"github.com/neardns/neardns/internal/dns/listener"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestServes(t *testing.T) {
	cluster, stub := newUpstream(t, address("10.0.0.1")), newUpstream(t, address("10.0.0.3"))
	external := newUpstream(t, func(q *mdns.Msg) *mdns.Msg {
		m := address("10.0.0.2")(q)
		if q.Question[0].Qclass == mdns.ClassCHAOS {
			m.Answer = []mdns.RR{&mdns.TXT{Hdr: mdns.RR_Header{Name: "version.bind.", Rrtype: mdns.TypeTXT, Class: mdns.ClassCHAOS}, Txt: []string{"upstream"}}}
		}
		return m
	})
	cfg := config(t, cluster)
	cfg.Addresses = append(cfg.Addresses, netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("::1"))
	cfg.Port = testutil.FreePort(t, "127.0.0.1", "127.0.0.2", "::1")
	cfg.External = servers(external.addr)
	cfg.StubDomains = map[string][]nameserver.Address{"corp.example": servers(stub.addr)}
	s := start(t, cfg)

	for _, a := range cfg.Addresses {
		at := netip.AddrPortFrom(a, cfg.Port).String()
		for _, network := range []string{"udp", "tcp"} {
			for name, ip := range map[string]string{
				"a.svc.cluster.local.": "10.0.0.1", "example.org.": "10.0.0.2", "www.corp.example.": "10.0.0.3",
			} {
				wantA(t, testutil.Exchange(t, network, at, question(name, mdns.TypeA)), ip)
			}
			m := testutil.Exchange(t, network, at, question("n1.probe.neardns.invalid.", mdns.TypeTXT))
			if len(m.Answer) != 1 || m.Answer[0].(*mdns.TXT).Txt[0] != "test.1" {
				t.Errorf("%s %s: probe answered %v", network, at, m)
			}
		}
	}
	if cluster.tcp.Load() == 0 { // a query that waits long for it goes over UDP too
		t.Error("the cluster upstream got no query over TCP")
	}
	select {
	case <-s.Done():
		t.Error("done while it serves")
	default:
	}
	if err := s.Start(context.Background(), cfg); !errors.Is(err, listener.ErrStarted) {
		t.Errorf("second start: %v", err)
	}
	done := s.Done()
	testutil.Must(t, s.Stop())
	select {
	case <-done:
	default:
		t.Error("not done after Stop")
	}
	testutil.Check(t, s.Stop(), "second stop")
	if err := s.Restart(context.Background(), cfg); !errors.Is(err, listener.ErrStopped) {
		t.Errorf("restart after stop: %v", err)
	}
	// The addresses are free again at once, for a successor and for this server.
	testutil.Must(t, s.Start(context.Background(), cfg))
	wantA(t, testutil.Exchange(t, "udp", addressOf(cfg), question("example.org.", mdns.TypeA)), "10.0.0.2")
	// Other classes than IN are forwarded, as by kube-dns's own CoreDNS.
	for class, qtype := range map[uint16]uint16{mdns.ClassCHAOS: mdns.TypeTXT, mdns.ClassANY: mdns.TypeA} {
		q := question("version.bind.", qtype)
		q.Question[0].Qclass = class
		if m := testutil.Exchange(t, "udp", addressOf(cfg), q); m.Rcode != mdns.RcodeSuccess || len(m.Answer) != 1 {
			t.Errorf("class %d: %v", class, m)
		}
	}
}

// TestFailedStartUp: a plugin's start-up fails during a reload, because the port of pprof is taken. The reload ends with the error, also
// with plugin file. The old configuration keeps its limits, and its entries when the cache is swept.
func TestFailedStartUp(t *testing.T) {
	var later atomic.Bool
	up := newUpstream(t, func(q *mdns.Msg) *mdns.Msg {
		if later.Load() {
			return new(mdns.Msg).SetRcode(q, mdns.RcodeNameError)
		}
		return address("10.0.0.1")(q)
	})
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	defer taken.Close()
	zone := filepath.Join(t.TempDir(), "zone")
	testutil.Must(t, os.WriteFile(zone, []byte("@ 60 IN SOA ns.file.example. host.file.example. 1 60 60 60 60\n"), 0o600))
	cfg := config(t, up)
	cfg.Snippets = map[string]string{"file.example": "file " + zone}
	cfg.StubDomains = map[string][]nameserver.Address{"corp.example": servers(up.addr)}
	store, gate := answers.NewStore(0), limit.New(1)
	s := sharing(slog.New(slog.DiscardHandler), store, gate)
	testutil.Must(t, s.Start(t.Context(), cfg))
	defer s.Stop() //nolint:errcheck // at the end
	resolve := func(i int) (rcode int) {
		t.Helper()
		rcode, err := s.Fetch(testutil.Packed(t, question(fmt.Sprintf("n%d.example.org.", i), mdns.TypeA)), nil)
		testutil.Must(t, err)
		return rcode
	}
	const names = 1100
	resolve(0)

	next := cfg
	next.Snippets = map[string]string{"file.example": "file " + zone, ".": "pprof " + taken.Addr().String()}
	next.StubDomains, next.Misses, next.Cache.Entries = nil, 7, names-1
	if err := s.Restart(t.Context(), next); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("restart: %v", err)
	}
	if err := promtest.CollectAndCompare(gate.Collector(), strings.NewReader(`
# HELP neardns_misses_in_flight_limit The most queries in flight to upstreams at one time (limits.misses).
# TYPE neardns_misses_in_flight_limit gauge
neardns_misses_in_flight_limit 1024
`), "neardns_misses_in_flight_limit"); err != nil {
		t.Error(err)
	}
	for i := range names {
		testutil.Eventually(t, func() error { return testutil.ErrorIf(resolve(i) != mdns.RcodeSuccess, "n%d is not answered", i) })
	}
	store.Sweep()
	later.Store(true)
	for i := range names {
		if resolve(i) != mdns.RcodeSuccess {
			t.Fatalf("the entry of n%d.example.org. is lost", i)
		}
	}
}

// TestLog: the server logs nothing by itself, and of queries what the configuration has.
func TestLog(t *testing.T) {
	fails := newUpstream(t, func(q *mdns.Msg) *mdns.Msg { return nil })
	for _, tc := range []struct {
		queries corefile.Queries
		want    []string
		most    int // lines
	}{
		{corefile.QueriesOff, []string{"level=WARN msg=coredns text=\"2 a.cluster.local. A:", "plugin=errors"}, 2},
		{corefile.QueriesErrors, []string{"level=WARN msg=coredns text=\"2 a.cluster.local. A:", "text=\"2 b.cluster.local. A:"}, 4},
		{corefile.QueriesAll, []string{"level=INFO msg=query client=127.0.0.1 name=a.cluster.local. type=A protocol=udp rcode=SERVFAIL"}, 9},
	} {
		t.Run(string(tc.queries), func(t *testing.T) {
			out := new(testutil.Output)
			s := newServer(slog.New(slog.NewTextHandler(out, nil)))
			cfg := config(t, fails)
			cfg.Queries = tc.queries
			// A quick failure: nothing listens there.
			cfg.Cluster = []nameserver.Address{{Addr: netip.AddrPortFrom(cfg.Addresses[0], testutil.FreePort(t, "127.0.0.1"))}}
			testutil.Must(t, s.Start(context.Background(), cfg))
			defer s.Stop()
			if tc.queries != corefile.QueriesAll && out.String() != "" {
				t.Errorf("said: %s", out)
			}
			for _, name := range []string{"a.cluster.local.", "b.cluster.local.", "c.cluster.local."} {
				if m := testutil.Exchange(t, "udp", addressOf(cfg), question(name, mdns.TypeA)); m.Rcode != mdns.RcodeServerFailure {
					t.Errorf("%s: %v", name, m)
				}
			}
			// A query is logged when it was answered, perhaps a moment later; Stop waits for that.
			testutil.Check(t, s.Stop())
			for _, want := range tc.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%q is missing in:\n%s", want, out)
				}
			}
			if n := strings.Count(out.String(), "\n"); n > tc.most {
				t.Errorf("%d lines:\n%s", n, out)
			}
		})
	}
}
