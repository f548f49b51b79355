package cache

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/offload/entries"
	"github.com/neardns/neardns/pkg/testutil"
)

// kernel is a kernel program for the test, with room for one entry.
type kernel struct {
	mu    sync.Mutex // guards the fields below
	entry *entries.Item
	hits  uint64
	began time.Time
}

func (k *kernel) Now() time.Duration { return time.Since(k.began) }

func (k *kernel) set(l *entries.Item) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.entry, k.hits = l, 0
	return nil
}

func (k *kernel) Put(l entries.Item) error { return k.set(&l) }
func (k *kernel) Invalidate() error        { return k.set(nil) }

// has reports whether the kernel has this entry. mu is held.
func (k *kernel) has(key *msg.Key) bool {
	return k.entry != nil && bytes.Equal(k.entry.Key.Bytes(), key.Bytes())
}

func (k *kernel) Remove(key *msg.Key) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.has(key) {
		k.entry, k.hits = nil, 0
	}
	return nil
}

func (k *kernel) Hits(each func(string, uint64)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.entry != nil {
		each(string(k.entry.Key.Question()), k.hits)
		k.hits = 0
	}
	return nil
}

func (k *kernel) HitsOf(key *msg.Key) (n uint64, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.has(key) {
		n, k.hits = k.hits, 0
	}
	return n, nil
}

// answers reports whether the kernel has an answer.
func (k *kernel) answers(key *msg.Key) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.has(key) || k.entry.Until <= k.Now() {
		return false
	}
	k.hits++
	return true
}

type offloadClient struct{}

func (offloadClient) MayOffload() bool { return true }

// TestRefreshOfLent: hits that the kernel serves count for the refresh of an entry. No client waits, few queries reach the cache, and the
// refreshes end when no client queries the name any more.
func TestRefreshOfLent(t *testing.T) {
	for name, ttl := range map[string]uint32{"5 s": 5, "30 s": 30, "longer than it is entry": 90} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				waited, came := 0, 0
				k, store := &kernel{began: time.Now()}, answers.NewStore(0)
				offloader := entries.New(store, 10)
				f := fixtureOf(t, refreshes, store, offloader)
				f.answer = late(time.Millisecond, address("192.0.2.1", ttl))
				defer f.cache.ahead.end()
				fast := f.cache.FastPath(nil, ".")
				offloader.Changed()
				testutil.Must(t, offloader.Begin(k))
				ctx, end := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				wg.Go(func() { offloader.Run(ctx) })

				r := plain("a.example.")
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
						f.put(r)
					}
					if time.Since(at) > 0 {
						waited++
					}
				}
				asked := f.asked.Load()
				<-time.After(3 * time.Duration(ttl) * time.Second)
				after := f.asked.Load() - asked
				testutil.Equal(t, "clients that waited", 1, waited)
				if asked < 20 || asked > 22 { // by expiry 20
					t.Errorf("the upstream was asked %d times in 20 TTLs", asked)
				}
				// At most one for each time that the entry is offloaded, and one before a fetched answer is watched.
				if most := 10 + 20*(2+int(ttl)/30); came > most {
					t.Errorf("%d questions came up from the kernel, at most %d should", came, most)
				}
				if n := f.cache.ahead.watched(); after > 1 || n > 0 {
					t.Errorf("nobody asks: the upstream was asked %d times more, %d are watched", after, n)
				}
				end()
				wg.Wait()
			})
		})
	}
}
