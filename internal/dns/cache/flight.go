package cache

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/neardns/neardns/internal/dns/cache/answers"
)

// flights are the upstream queries in progress for whose answers other queries may wait, at most one for each key.
type flights struct {
	mu    sync.Mutex         // guards the field below
	under map[string]*flight // by the bytes of the query's key
}

// flight is an upstream query in progress, and its result.
type flight struct {
	key   string
	begun answers.Instant

	once sync.Once
	done chan struct{} // closed when the fields below are final

	entry     *answers.Entry // nil: no answer for waiting clients
	ttl       uint32         // of the reply; a stored entry's remaining TTL may be lower
	kept      bool           // all clients may get the entry, not only the first
	refreshed bool           // the upstream's answer replaces the key's stale entry
}

// join returns the flight of a key, or starts one. If it started one, leads is true, and the caller must call end.
func (fs *flights) join(key []byte, now answers.Instant) (f *flight, leads bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.under[string(key)]; f != nil {
		return f, false
	}
	if fs.under == nil {
		fs.under = map[string]*flight{}
	}
	f = &flight{key: string(key), begun: now, done: make(chan struct{})}
	fs.under[f.key] = f
	return f, true
}

// end removes a flight. If it has no result, the queries that wait for it are forwarded themselves, or get the stale entry.
func (fs *flights) end(f *flight) {
	fs.mu.Lock()
	delete(fs.under, f.key)
	fs.mu.Unlock()
	f.once.Do(func() { close(f.done) })
}

// settle sets the flight's result and wakes the clients that wait for it. Only the first call has an effect.
func (f *flight) settle(e *answers.Entry, ttl uint32, kept, refreshed bool) {
	f.once.Do(func() {
		f.entry, f.ttl, f.kept, f.refreshed = e, ttl, kept, refreshed
		close(f.done)
	})
}

// follow waits for the flight's result, at most maxFollow, and reports whether there is an entry.
func (f *flight) follow(ctx context.Context) bool {
	t := time.NewTimer(maxFollow)
	defer t.Stop()
	select {
	case <-f.done:
		return f.entry != nil
	case <-ctx.Done():
	case <-t.C:
	}
	return false
}

// left returns the TTL of a reply from the flight's result: f.ttl, or the entry's remaining TTL if that is lower and the entry has not
// expired.
func (f *flight) left(now answers.Instant) uint32 {
	if left := f.entry.Left(now); left > 0 && uint32(left) < f.ttl {
		return uint32(left)
	}
	return f.ttl
}

// health is the state of a block's upstream: how many queries in a row got no answer, and when the last answer came.
type health struct {
	silent  atomic.Int32 // queries without an answer since the last answer, counted up to about downAfter
	last    atomic.Int64 // when the last answer came, in nanoseconds on the store's clock
	probing atomic.Int64 // when probe last permitted a query, on the same clock
}

const (
	downAfter  = 3                      // unanswered queries in a row; more than one, because a single name may be unresolvable
	minDown    = 2 * time.Second        // the upstream must also have sent no answer for longer than this
	probeEvery = 100 * time.Millisecond // the pace of queries while the upstream is down, to notice when it is back
)

func (h *health) answer(now answers.Instant) {
	h.silent.Store(0)
	h.last.Store(int64(now))
}

func (h *health) silence() {
	if h.silent.Load() < downAfter {
		h.silent.Add(1)
	}
}

func (h *health) heard() answers.Instant { return answers.Instant(h.last.Load()) }

// down reports whether the upstream counts as down. A client with a stale entry then gets it at once, and waits for the upstream only if
// the block has the option stale_on_silence.
func (h *health) down(now answers.Instant) bool {
	return h.silent.Load() >= downAfter && time.Duration(int64(now)-h.last.Load()) > minDown
}

// probe reports whether a query may go to an upstream that is down: one may per probeEvery.
func (h *health) probe(now answers.Instant) bool {
	last := h.probing.Load()
	return time.Duration(int64(now)-last) >= probeEvery && h.probing.CompareAndSwap(last, int64(now))
}
