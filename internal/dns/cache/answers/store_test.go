package answers

import (
	"fmt"
	"io"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore(0)
		sp := s.Space(1)
		k, e := put(t, sp, "a.example.", 60)
		if got, denial := sp.Get(k); got != e || denial != nil {
			t.Fatal("not found")
		}
		if got, _ := s.Space(2).Get(k); got != nil {
			t.Error("found in another space")
		}
		if _, found := s.Find(k); found {
			t.Error("found in a space that no chain uses")
		}
		sp.Retain()
		if left, found := s.Find(k); left != 60 || !found || e.uses.Load() != 1 {
			t.Errorf("found: %t, %d s left, used %d times", found, left, e.uses.Load())
		}
		var other msg.Key
		question := k.Question()
		other.Set(question, true, false)
		if got, _ := sp.Get(&other); got != nil {
			t.Error("found for another DO")
		}
		<-time.After(59 * time.Second)
		testutil.Equal(t, "seconds left", 1, e.Left(s.Now()))
		<-time.After(2 * time.Second)
		testutil.Equal(t, "seconds left", -1, e.Left(s.Now()))
		_, again := put(t, sp, "a.example.", 60)
		if got, _ := sp.Get(k); got != again || sp.Len(Success) != 1 {
			t.Error("not replaced")
		}
		sp.Remove(e) // is not there any more
		if got, _ := sp.Get(k); got != again {
			t.Error("the wrong one was removed")
		}
		sp.Remove(again)
		if n, _ := s.Bytes(); n != 0 || sp.Len(Success) != 0 {
			t.Errorf("%d bytes of nothing", n)
		}
	})
}

func TestFlood(t *testing.T) {
	s := NewStore(0)
	sp := s.Space(1)
	sp.SetBounds([classes]int{1000, 1000}, 0)
	var hot []*msg.Key
	for i := range 500 {
		k, _ := put(t, sp, fmt.Sprintf("hot%d.example.", i), 600)
		sp.Get(k)
		hot = append(hot, k)
	}
	for i := range 5000 {
		put(t, sp, fmt.Sprintf("r%d.example.", i), 600)
		if n := sp.Len(Success); n > 1000 {
			t.Fatalf("%d entries", n)
		}
	}
	lost := 0
	for _, k := range hot {
		if e, _ := sp.Get(k); e == nil {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of 500 names in use were lost to names that nobody asks for twice", lost)
	}
}

// TestFloodBytes: without a maximum of entries, the store's bytes are the limit, and the space with most bytes loses entries.
func TestFloodBytes(t *testing.T) {
	s := NewStore(200_000)
	quiet, loud := s.Space(1), s.Space(2)
	for i := range 100 {
		put(t, quiet, fmt.Sprintf("q%d.example.", i), 600)
	}
	for i := range 5000 {
		put(t, loud, fmt.Sprintf("l%d.example.", i), 600)
		if n, limit := s.Bytes(); n > limit {
			t.Fatalf("%d bytes of %d", n, limit)
		}
	}
	if quiet.Len(Success) != 100 || loud.Len(Success) < 300 {
		t.Errorf("%d quiet, %d loud", quiet.Len(Success), loud.Len(Success))
	}
	s.SetLimit(20_000)
	if n, _ := s.Bytes(); n > 20_000 {
		t.Errorf("%d bytes after the limit was lowered", n)
	}
}

// TestLargeAnswer: the largest answer takes the place of an earlier one, also in the smallest store that can be configured.
func TestLargeAnswer(t *testing.T) {
	sp := NewStore(1 << 20).Space(1)
	k, old := put(t, sp, "a.example.", 60)
	large, err := NewEntry(k, Success, answer(t, "a.example.", dns.TypeA, many(3900, "a.example. 60 IN A 10.1.%d.%d")...), 60)
	testutil.Must(t, err)
	sp.Put(k, large)
	if got, _ := sp.Peek(k); got != large {
		t.Errorf("an answer of %d bytes is not stored; the earlier one stays: %t", large.Size(), got == old)
	}
}

// TestKnownAgain: an entry that is stored again soon after its eviction goes to the main queue.
func TestKnownAgain(t *testing.T) {
	s := NewStore(0)
	sp := s.Space(1)
	sp.SetBounds([classes]int{256, 256}, 0)
	for i := range 256 { // each of the 16 shards has some, or the entry would have none to evict but itself
		k, _ := put(t, sp, fmt.Sprintf("base%d.example.", i), 600)
		sp.Get(k)
	}
	k, _ := put(t, sp, "again.example.", 600)
	for i := 0; ; i++ {
		if e, _ := sp.Get(k); e == nil {
			break
		} else {
			e.uses.Store(0) // looking must not count
		}
		put(t, sp, fmt.Sprintf("r%d.example.", i), 600)
		if i > 1000 {
			t.Fatal("never evicted")
		}
	}
	put(t, sp, "again.example.", 600)
	sh := sp.shard(k.Hash(s.seed))
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	if got := sh.index[Success][k.Hash(s.seed)]; got == nil || got.list != &sh.queue[Success].main {
		t.Errorf("not in the main queue: %v", got)
	}
}

// TestUsedBefore: an entry that replaces a used one goes to the main queue.
func TestUsedBefore(t *testing.T) {
	for _, used := range []bool{false, true} {
		s := NewStore(0)
		sp := s.Space(1)
		k, _ := put(t, sp, "a.example.", 600)
		if used {
			sp.Get(k)
		}
		_, e := put(t, sp, "a.example.", 600)
		if q := &sp.shard(k.Hash(s.seed)).queue[Success]; (e.list == &q.main) != used {
			t.Errorf("used %t: in the wrong queue", used)
		}
	}
}

func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore(0)
		used, left := s.Space(1), s.Space(2)
		used.Retain()
		left.Retain()
		used.SetBounds([classes]int{}, time.Minute)
		left.SetBounds([classes]int{}, time.Minute)
		for _, sp := range []*Space{used, left} {
			for i, ttl := range []uint32{10, 600} {
				put(t, sp, fmt.Sprintf("n%d.example.", i), ttl)
			}
		}
		<-time.After(69 * time.Second)
		s.Sweep()
		if used.Len(Success) != 2 || left.Len(Success) != 2 {
			t.Error("swept too early")
		}
		left.Release()
		<-time.After(2 * time.Second)
		s.Sweep()
		if used.Len(Success) != 1 || left.Len(Success) != 0 {
			t.Errorf("%d in use, %d left", used.Len(Success), left.Len(Success))
		}
		put(t, left, "late.example.", 60) // a query that was still under way
		s.Sweep()
		if n, _ := s.Bytes(); left.Len(Success) != 0 || n != used.bytes[Success].Load() {
			t.Error("an entry of a space that is not in use stays")
		}
		// A configuration got the space before a sweep, and begins to serve after it.
		left.Retain()
		k, _ := put(t, left, "late.example.", 60)
		if _, found := s.Find(k); !found || left.Len(Success) != 1 {
			t.Error("a space that is in use again stores no entry")
		}
		left.Release()
		used.Release()
		s.Sweep()
		if used.Len(Success) != 1 {
			t.Error("swept although nobody serves: the next process wants it")
		}
	})
}

// TestHonestBytes holds the store's own size against the runtime's figures.
func TestHonestBytes(t *testing.T) {
	const n = 4000
	for _, records := range []int{1, 8} {
		names, rrs := make([]string, n), many(records, "x.example. 60 IN A 192.0.%d.%d")
		for i := range names {
			names[i] = fmt.Sprintf("svc-%d.namespace.svc.cluster.local.", i)
		}
		s := NewStore(1 << 30)
		sp := s.Space(1)
		before := testutil.Heap()
		for _, name := range names {
			k, _ := key(t, name, dns.TypeA)
			e, err := NewEntry(k, Success, answer(t, name, dns.TypeA, rrs...), 60)
			testutil.Must(t, err)
			sp.Put(k, e)
		}
		took := testutil.Heap() - before
		said, _ := s.Bytes()
		t.Logf("%d records: the store says %d bytes an entry, the heap grew by %d", records, said/n, took/n)
		if r := float64(said) / float64(took); r < 0.85 || r > 1.15 {
			t.Errorf("%d records: the store says %d bytes, the heap grew by %d", records, said, took)
		}
		runtime.KeepAlive(s)
		runtime.KeepAlive(names)
	}
}

func TestConcurrent(t *testing.T) {
	s := NewStore(100_000)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 3000 {
				sp := s.Space(uint64(i % 3))
				k, e := entry(t, fmt.Sprintf("n%d.example.", (i*7+g)%400), 60)
				if got, _ := sp.Get(k); got != nil && i%5 == 0 {
					sp.Remove(got)
				}
				sp.Put(k, e)
				if i%500 == 0 {
					s.Sweep()
					testutil.Check(t, s.Snapshot(io.Discard, Boot{}))
				}
			}
		})
	}
	wg.Wait()
	var bytes int64
	for _, sp := range s.all() {
		for c := range classes {
			n := 0
			for i := range sp.shards {
				n += len(sp.shards[i].index[c])
				if l := sp.shards[i].queue[c]; l.small.n+l.main.n != len(sp.shards[i].index[c]) {
					t.Error("a queue and its index differ")
				}
			}
			testutil.Equal(t, "entries counted", n, sp.Len(c))
			bytes += sp.bytes[c].Load()
		}
	}
	if n, limit := s.Bytes(); n != bytes || n > limit {
		t.Errorf("%d bytes in all, %d by space, limit %d", n, bytes, limit)
	}
}

// TestTryPeek: TryPeek does not wait while a writer has the lock. Otherwise it finds what Peek finds, and counts no use.
func TestTryPeek(t *testing.T) {
	s := NewStore(0)
	sp := s.Space(1)
	k, e := put(t, sp, "a.example.", 30)
	if success, denial, ok := sp.TryPeek(k); success != e || denial != nil || !ok || e.uses.Load() != 0 {
		t.Errorf("found %v, %v, %t, used %d", success, denial, ok, e.uses.Load())
	}
	sh := sp.shard(e.hash)
	sh.mu.Lock()
	if success, denial, ok := sp.TryPeek(k); success != nil || denial != nil || ok {
		t.Error("found while a writer had the lock")
	}
	sh.mu.Unlock()
	if _, _, ok := sp.TryPeek(k); !ok {
		t.Error("nobody has the lock")
	}
	for range 5 {
		testutil.Equal(t, "hits with the next one", 1, e.Hits(s.Now(), time.Minute))
	}
	if n := e.Hit(s.Now(), time.Minute); n != 1 || e.Hits(s.Now(), time.Minute) != 2 {
		t.Errorf("hits %d, next %d", n, e.Hits(s.Now(), time.Minute))
	}
}
