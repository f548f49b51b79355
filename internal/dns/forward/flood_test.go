package forward

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/testutil"
)

// from sends a query as a client, and returns the response code.
func (b *block) from(ctx context.Context, c *client, name string) int {
	m, rcode, _ := b.exchange(ctx, c, name)
	if m != nil {
		return m.Rcode
	}
	return rcode
}

// flood queries 400 random names a second below a zone, until ctx ends.
func (b *block) flood(ctx context.Context, c *client, zone string) {
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(time.Second / 400)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			wg.Go(func() { b.from(ctx, c, fmt.Sprintf("r%d.p%d.%s", i, i%97, zone)) })
		}
	}
}

// One pod queries random names below a zone whose servers are dead. On a node without other queries, another pod's new names are answered,
// outside the cluster and in it, where dead reverse zones go to kube-dns.
func TestFloodBelowADeadZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			name, dead, good string
			stream           bool
		}{
			{"outside", "dead.example.", "shop%d.example.org.", false},
			{"reverse zones, by kube-dns", "9.10.in-addr.arpa.", "shop%d.default.svc.cluster.local.", true},
		} {
			func(t testing.TB) {
				f := newFake(t, onBoth, func(q *dns.Msg, stream bool) *dns.Msg {
					if strings.HasSuffix(q.Question[0].Name, tc.dead) {
						return nil
					}
					return answersAs("upstream")(q, stream)
				})
				b := serve(t, func(a *Block) { a.stream = tc.stream }, f.addr)
				ctx, cancel := context.WithCancel(context.Background())
				var wg sync.WaitGroup
				wg.Go(func() { b.flood(ctx, podAt(66), tc.dead) })
				eventually(t, "the flood's first questions are in vain", func() bool { return f.questions() > 400 })
				const questions = 100
				answered := 0
				tick := time.NewTicker(40 * time.Millisecond)
				for i := range questions {
					<-tick.C
					if b.from(ctx, podAt(7), fmt.Sprintf(tc.good, i)) == dns.RcodeSuccess {
						answered++
					}
				}
				tick.Stop()
				testutil.Equal(t, "the other pod's answers", questions, answered)
				if n := b.list[0].health.changes.Load(); n != 0 {
					t.Errorf("the server was held to fail:\n%s", b.log)
				}
				cancel()
				wg.Wait()
			}(named{t, tc.name})
		}
	})
}

// All servers are dead and one pod sends many queries: another pod's first query still probes them. A query that is shed is neither stored
// nor counted as the upstream's failure.
func TestProbesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		tried := map[string]bool{}
		f := newFake(t, onUDP, func(q *dns.Msg, _ bool) *dns.Msg {
			mu.Lock()
			defer mu.Unlock()
			tried[q.Question[0].Name] = true
			return nil
		})
		b := serve(t, nil, f.addr)
		eventually(t, "it is known as dead", func() bool { b.from(t.Context(), podAt(1), "a.example."); return b.list[0].health.failing.Load() })
		var wg sync.WaitGroup
		var shed atomic.Int64
		for i := range 5 * maxProbes {
			wg.Go(func() {
				if _, code, err := b.exchange(t.Context(), podAt(66), fmt.Sprintf("n%d.example.", i)); code == dns.RcodeServerFailure && err == nil {
					shed.Add(1)
				}
			})
		}
		eventually(t, "one pod has its share of probes", func() bool { return shed.Load() >= 4*maxProbes })
		for i := range byte(2 * maxProbes) {
			wg.Go(func() { b.from(t.Context(), podAt(70+i), fmt.Sprintf("first%d.example.", i)) })
		}
		wg.Wait()
		if got := shed.Load(); got != 5*maxProbes-maxProbes/2 || uint64(got) != b.Block.servers.shed.Load() {
			t.Errorf("%d of one pod's %d were shed, %d counted", got, 5*maxProbes, b.Block.servers.shed.Load())
		}
		mu.Lock()
		defer mu.Unlock()
		for i := range 2 * maxProbes {
			if !tried[fmt.Sprintf("first%d.example.", i)] {
				t.Errorf("the first question of pod %d was not tried", i)
			}
		}
	})
}

// A server that answers health checks does not fail because of names that it leaves unanswered. A dead server recovers with any answer to a
// health check, although it still does not answer for these names.
func TestHealthCheckDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dead atomic.Bool
		f := newFake(t, onBoth, func(q *dns.Msg, stream bool) *dns.Msg {
			if dead.Load() || q.Question[0].Qtype != dns.TypeNS {
				return nil
			}
			return code(dns.RcodeRefused)(q, stream)
		})
		b := serve(t, nil, f.addr)
		ask := func() {
			ctx, cancel := context.WithTimeout(context.Background(), silentEnd+300*time.Millisecond) // by then a silent server counts as failing
			defer cancel()
			var wg sync.WaitGroup
			for i := range 2 * failLimit {
				wg.Go(func() { b.from(ctx, podAt(1), fmt.Sprintf("n%d.silent%d.example.", i, i)) })
			}
			wg.Wait()
		}
		if ask(); b.list[0].health.failing.Load() {
			t.Errorf("silence of names was held against the server:\n%s", b.log)
		}
		dead.Store(true)
		eventually(t, "it is known as dead", func() bool { ask(); return b.list[0].health.failing.Load() })
		dead.Store(false)
		eventually(t, "it is back", func() bool { return !b.list[0].health.failing.Load() })
	})
}

// The time of a server's last answer is on a clock that counts from the creation of Servers and cannot be set.
func TestServersClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(slog.New(slog.DiscardHandler)).acquire(spec{Address: nameserver.At(netip.MustParseAddr("192.0.2.1"))})
		defer s.close()
		before := time.Now()
		if s.heard(before) {
			t.Error("heard before anything was")
		}
		s.hear(time.Now())
		if !s.heard(before) || s.heard(time.Now().Add(time.Second)) {
			t.Error("heard at the wrong time")
		}
		if last := time.Duration(s.health.last.Load()); last <= 0 || last > time.Minute {
			t.Errorf("it counts %s since it was made", last)
		}
	})
}
