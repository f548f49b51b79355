package cache

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/neardns/neardns/internal/dns/cache/answers"
)

// flights are the upstream queries in progress, at most one for each key.
type flights struct {
	mu    sync.Mutex // guards the field below
	under map[string]*flight
}

// flight is an upstream query in progress, and its result.
type flight struct {
	key   string
	begun answers.Instant

	once sync.Once
	done chan struct{} // closed when the fields below are set for good

	entry     *answers.Entry // nil: no answer for other clients
	ttl       uint32         // for an entry that is in no store
	kept      bool           // the entry is for all clients, not for the first alone
	refreshed bool           // it replaces the stale entry
}

// join finds the flight of a key or begins it; then leads is true, and end must be called.
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

// end removes a flight. Clients that wait for it without a result send their own queries.
func (fs *flights) end(f *flight) {
	fs.mu.Lock()
	delete(fs.under, f.key)
	fs.mu.Unlock()
	f.once.Do(func() { close(f.done) })
}

// settle sets the flight's result. The first call counts.
func (f *flight) settle(e *answers.Entry, ttl uint32, kept, refreshed bool) {
	f.once.Do(func() {
		f.entry, f.ttl, f.kept, f.refreshed = e, ttl, kept, refreshed
		close(f.done)
	})
}

// follow waits for the result of another client's query.
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

// left is the TTL for a client of the flight's result: the rest of the entry's, and at most the one that it was given.
func (f *flight) left(now answers.Instant) uint32 {
	if left := f.entry.Left(now); left > 0 && uint32(left) < f.ttl {
		return uint32(left)
	}
	return f.ttl
}

// health is the state of a block's upstream, judged by its answers and its silence.
type health struct {
	silent  atomic.Int32 // queries without an answer since the last one
	last    atomic.Int64 // answer
	probing atomic.Int64 // last query while it was down
}

const (
	downAfter  = 3                      // unanswered queries in a row, so that one name that cannot be resolved does not count
	minDown    = 2 * time.Second        // without any answer
	probeEvery = 100 * time.Millisecond // one query, to notice when it is back
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

// down reports whether waiting for the upstream is of no use.
func (h *health) down(now answers.Instant) bool {
	return h.silent.Load() >= downAfter && time.Duration(int64(now)-h.last.Load()) > minDown
}

// probe lets one query through now and then.
func (h *health) probe(now answers.Instant) bool {
	last := h.probing.Load()
	return (last == 0 || time.Duration(int64(now)-last) >= probeEvery) && h.probing.CompareAndSwap(last, int64(now))
}
