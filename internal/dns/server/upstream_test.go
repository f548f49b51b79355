package server_test

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/neardns/neardns/internal/dns/cache"
	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/corefile"
	askplugin "github.com/neardns/neardns/internal/dns/forward"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/internal/dns/limit"
	"github.com/neardns/neardns/internal/dns/metrics"
	"github.com/neardns/neardns/internal/dns/probe"
	"github.com/neardns/neardns/internal/dns/server"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestMain fails when a test leaves a goroutine behind: servers, forwarders, health checks, of which one ends after half a second of sleep.
func TestMain(m *testing.M) {
	testutil.NoLeaks(m,
		// CoreDNS ends a forwarder's connection manager by finalizer, and caddy's list of instances keeps the
		// last ones reachable: a few idle goroutines, however many reloads there were (TestReloadsLeaveNothing).
		goleak.IgnoreTopFunction("github.com/coredns/coredns/plugin/pkg/proxy.(*Transport).connManager"),
		// TestCheck's; see Server.Check.
		goleak.IgnoreTopFunction("github.com/coredns/coredns/plugin/hosts.periodicHostsUpdate.func1"),
	)
}

// upstream is a DNS server whose answers the test writes.
type upstream struct {
	addr string
	tcp  atomic.Int64 // queries
}

// newUpstream starts one. A server that forwards to it has the clocks of its forwarder and its listeners, so a test with an upstream is one
// of the kernel tier: it asserts who answers and what is open, and waits with Patience.
func newUpstream(t testing.TB, answer func(q *mdns.Msg) *mdns.Msg) *upstream {
	t.Helper()
	testutil.RequireRoot(t)
	u := new(upstream)
	u.addr = testutil.ServeBoth(t, func(w mdns.ResponseWriter, q *mdns.Msg) {
		if w.RemoteAddr().Network() == "tcp" {
			u.tcp.Add(1)
		}
		if m := answer(q); m != nil {
			_ = w.WriteMsg(m)
		}
	})
	return u
}

// laterAnswer is the later answer of a forgetful upstream.
const laterAnswer = "10.9.9.9"

// newForgetful returns an upstream that answers with laterAnswer after the test has set again, which shows whether it gets queries for
// cached names. Counting its queries would not show that: the plugin searches for loops 300 ms after a start, and hedges a query that takes
// as long, as on a busy machine.
func newForgetful(t testing.TB, answer func(q *mdns.Msg) *mdns.Msg) (up *upstream, again *atomic.Bool) {
	t.Helper()
	again = new(atomic.Bool)
	return newUpstream(t, func(q *mdns.Msg) *mdns.Msg {
		if again.Load() {
			return address(laterAnswer)(q)
		}
		return answer(q)
	}), again
}

// address answers every A query with ip and a TTL that does not end in the test, however busy the machine is.
func address(ip string) func(*mdns.Msg) *mdns.Msg {
	return func(q *mdns.Msg) *mdns.Msg {
		m := new(mdns.Msg).SetReply(q)
		if q.Question[0].Qtype == mdns.TypeA {
			m.Answer = []mdns.RR{&mdns.A{Hdr: mdns.RR_Header{Name: q.Question[0].Name, Rrtype: mdns.TypeA, Class: mdns.ClassINET, Ttl: 3000},
				A: net.ParseIP(ip)}}
		}
		return m
	}
}

func newServer(log *slog.Logger) *server.Server {
	return sharing(log, answers.NewStore(0), limit.New(limit.DefaultLimit))
}

// sharing makes a server with a store and a gate that the test has, too.
func sharing(log *slog.Logger, answers *answers.Store, gate *limit.Gate) *server.Server {
	return server.New(log, nil, corefile.Plugin{Name: "probe", Setup: probe.Setup()}, corefile.Plugin{Name: "metrics", Setup: metrics.Setup},
		corefile.Plugin{Name: "limit", Setup: limit.Setup(gate)},
		corefile.Plugin{Name: "ask", Setup: askplugin.Setup(askplugin.NewServers(log))},
		corefile.Plugin{Name: "cache", Setup: cache.Setup(answers, cache.NewMetrics(answers, nil), nil)})
}

// servers returns the addresses of servers without TLS.
func servers(s ...string) []nameserver.Address {
	var out []nameserver.Address
	for _, a := range s {
		out = append(out, nameserver.Address{Addr: netip.MustParseAddrPort(a)})
	}
	return out
}

// config returns a configuration that serves on 127.0.0.1 with one upstream for everything.
func config(t testing.TB, up *upstream) server.Config {
	t.Helper()
	return server.Config{
		Connections: 1024,
		Config: corefile.Config{
			Addresses:     []netip.Addr{netip.MustParseAddr("127.0.0.1")},
			Port:          testutil.FreePort(t, "127.0.0.1"),
			ClusterDomain: "cluster.local",
			Cluster:       servers(up.addr),
			External:      servers(up.addr),
			Cache:         corefile.Cache{Entries: 10000, NegativeTTL: 5 * time.Second},
			Misses:        1024,
			FastPath:      true,
			InstanceID:    "test.1",
		},
	}
}

func start(t testing.TB, cfg server.Config) *server.Server {
	t.Helper()
	s := newServer(slog.New(slog.DiscardHandler))
	testutil.Must(t, s.Start(context.Background(), cfg))
	t.Cleanup(func() { testutil.Must(t, s.Stop()) })
	return s
}

func addressOf(cfg server.Config) string {
	return netip.AddrPortFrom(cfg.Addresses[0], cfg.Port).String()
}

func question(name string, qtype uint16) *mdns.Msg {
	return new(mdns.Msg).SetQuestion(name, qtype)
}

func wantA(t testing.TB, m *mdns.Msg, ip string) {
	t.Helper()
	if len(m.Answer) == 1 {
		if a, ok := m.Answer[0].(*mdns.A); ok && a.A.String() == ip {
			return
		}
	}
	t.Errorf("want %s, got %v", ip, m)
}
