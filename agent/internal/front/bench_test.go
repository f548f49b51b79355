package front_test

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/agent/internal/chain"
	"github.com/neardns/neardns/agent/internal/clients"
	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/coredns/cache"
	"github.com/neardns/neardns/agent/internal/coredns/limit"
	"github.com/neardns/neardns/agent/internal/coredns/metrics"
	"github.com/neardns/neardns/agent/internal/coredns/searchpath"
	"github.com/neardns/neardns/agent/internal/front"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/agent/internal/server"
	"github.com/neardns/neardns/agent/internal/wire"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// benchPods is how many pods a node has, at most, unless somebody changed that.
const benchPods = 110

// BenchmarkHit answers from the cache, from the moment that a datagram was read and taken apart to the bytes for the socket: for a pod
// that is counted, and for a client that is no pod.
func BenchmarkHit(b *testing.B) {
	dir := b.TempDir()
	for i := range benchPods {
		f := podfile.File{PodNamespace: "shop", PodName: fmt.Sprint("web-", i), ContainerID: fmt.Sprint("c", i), IfName: "eth0",
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 1, byte(i)})}}
		if err := podfile.Write(dir, f); err != nil {
			b.Fatal(err)
		}
	}
	log := slog.New(slog.DiscardHandler)
	conf := config.Default()
	known := clients.New(&conf)
	known.Follow(pods.Open(dir, rules.Kind{}, log))
	for name, server := range map[string]*server.Server{"observed": benchServer(log, known), "unobserved": benchServer(log, nil)} {
		b.Run(name, func(b *testing.B) { benchHits(b, server) })
	}
	counts := clients.Counts{}
	for _, p := range known.Pods() {
		counts.Queries += p.Counts.Queries
		counts.Hits += p.Counts.Hits
	}
	if counts.Hits == 0 || counts.Hits+1 < counts.Queries {
		b.Errorf("counted %+v", counts)
	}
}

func benchHits(b *testing.B, s *server.Server) {
	cfg := server.Config{Connections: 1024, Config: chain.Config{Misses: 1024, Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Port: 45353,
		Override: ". {\n cache {\n  rotate\n  prefetch 3 1m 9%\n }\n template IN A {\n  answer \"{{ .Name }} 3600 IN A 192.0.2.1\"\n }\n}\n"}}
	if err := s.Start(b.Context(), cfg); err != nil {
		b.Fatal(err)
	}
	defer s.Stop() //nolint:errcheck // at the end
	for name, ip := range map[string]net.IP{"pod": net.IPv4(10, 244, 1, 7), "stranger": net.IPv4(192, 0, 2, 1)} {
		b.Run(name, func(b *testing.B) {
			w := &taker{from: &net.UDPAddr{IP: ip, Port: 40000}, at: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 45353}}
			r := new(dns.Msg).SetQuestion("svc-1.default.svc.cluster.local.", dns.TypeA)
			b.ReportAllocs()
			for b.Loop() {
				s.Do(w, r)
			}
			if w.size == 0 {
				b.Fatal("no answer")
			}
		})
	}
}

// benchServer makes a server that known observes, or nobody (nil).
func benchServer(log *slog.Logger, known *clients.Clients) *server.Server {
	var watch front.Observer
	if known != nil {
		watch = known
	}
	answers := wire.NewStore(0)
	return server.New(log, watch, chain.Plugin{Name: "metrics", Setup: metrics.Setup},
		chain.Plugin{Name: "searchpath", Setup: searchpath.Setup(searchpath.NewMemory(), new(searchpath.Metrics))},
		chain.Plugin{Name: "limit", Setup: limit.Setup(limit.New(limit.DefaultLimit))},
		chain.Plugin{Name: "cache", Setup: cache.Setup(answers, cache.NewMetrics(answers, nil), nil)})
}

// taker is a client that takes everything.
type taker struct {
	dns.ResponseWriter
	from, at net.Addr
	size     int
}

func (t *taker) RemoteAddr() net.Addr { return t.from }
func (t *taker) LocalAddr() net.Addr  { return t.at }

func (t *taker) Write(b []byte) (int, error) {
	t.size = len(b)
	return len(b), nil
}

func (t *taker) WriteMsg(m *dns.Msg) error {
	t.size = m.Len()
	return nil
}
