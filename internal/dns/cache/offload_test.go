package cache

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/offload"
	"github.com/neardns/neardns/pkg/testutil"
)

// kernel stands in for the kernel program: it answers from its offloaded entries.
type kernel struct {
	mu    sync.Mutex // guards the field below
	lent  map[string]*lent
	began time.Time
}

type lent struct {
	offload.Item
	hits uint64
}

func (k *kernel) Now() time.Duration { return time.Since(k.began) }

func (k *kernel) Put(l offload.Item) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lent[string(l.Key.Bytes())] = &lent{Item: l}
	return nil
}

func (k *kernel) Remove(key *msg.Key) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.lent, string(key.Bytes()))
	return nil
}

func (k *kernel) Invalidate() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.lent)
	return nil
}

func (k *kernel) Hits(each func(string, uint64)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for q, l := range k.lent {
		each(q[:len(q)-1], l.hits)
		l.hits = 0
	}
	return nil
}

func (k *kernel) HitsOf(key *msg.Key) (n uint64, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l := k.lent[string(key.Bytes())]; l != nil {
		n, l.hits = l.hits, 0
	}
	return n, nil
}

// answers reports whether the kernel has an answer.
func (k *kernel) answers(key *msg.Key) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.lent[string(key.Bytes())]
	if l == nil || l.Until <= k.Now() {
		return false
	}
	l.hits++
	return true
}

type offloadClient struct{}

func (offloadClient) MayOffload() bool { return true }

// TestRefreshOfLent: hits that the kernel serves count for the refresh of an entry. No client waits, few queries reach the cache, and the
// refreshes end when no client queries the name any more.
func TestRefreshOfLent(t *testing.T) {
	for name, ttl := range map[string]uint32{"5 s": 5, "30 s": 30, "longer than it is lent": 90} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var upstream atomic.Int64
				waited, came := 0, 0
				k := &kernel{began: time.Now(), lent: map[string]*lent{}}
				store := answers.NewStore(0)
				offloader := offload.New(store, 10)
				c := caddy.NewTestController("dns", refreshes)
				c.ServerBlockKeys = []string{"."}
				testutil.Must(t, Setup(store, NewMetrics(store, prometheus.NewRegistry()), offloader)(c))
				h := dnsserver.GetConfig(c).Plugin[0](plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
					upstream.Add(1)
					<-time.After(time.Millisecond)
					return address("192.0.2.1", ttl)(w, r)
				}))
				cache := h.(*Cache)
				defer cache.ahead.end()
				fast := cache.FastPath(nil, ".")
				offloader.Changed()
				testutil.Must(t, offloader.Begin(k))
				ctx, end := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				wg.Go(func() { offloader.Run(ctx) })

				r := new(dns.Msg).SetQuestion("a.example.", dns.TypeA)
				b, err := r.Pack()
				testutil.Must(t, err)
				q := fastpath.Query{Wire: b, Identity: offloadClient{}}
				if !q.Read(q.Wire) {
					t.Fatal("the question is not plain")
				}
				lasts := 20 * time.Duration(ttl) * time.Second
				for begun := time.Now(); time.Since(begun) < lasts; <-time.After(50 * time.Millisecond) {
					if k.answers(&q.Key) {
						continue
					}
					came++
					at := time.Now()
					if _, _, ok := fast.Answer(nil, &q); !ok {
						if _, err := cache.ServeDNS(t.Context(), new(writer), r); err != nil {
							t.Fatal(err)
						}
					}
					if time.Since(at) > 0 {
						waited++
					}
				}
				asked := upstream.Load()
				<-time.After(3 * time.Duration(ttl) * time.Second)
				after := upstream.Load() - asked
				if waited != 1 {
					t.Errorf("%d clients waited", waited)
				}
				if asked < 20 || asked > 22 { // by expiry 20
					t.Errorf("the upstream was asked %d times in 20 TTLs", asked)
				}
				// At most one for each time that the entry is offloaded, and one before a fetched answer is watched.
				if most := 10 + 20*(2+int(ttl)/30); came > most {
					t.Errorf("%d questions came up from the kernel, at most %d should", came, most)
				}
				if n := cache.ahead.watched(); after > 1 || n > 0 {
					t.Errorf("nobody asks: the upstream was asked %d times more, %d are watched", after, n)
				}
				end()
				wg.Wait()
			})
		})
	}
}
