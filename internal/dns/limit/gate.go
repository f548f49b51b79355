package limit

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/neardns/neardns/internal/dns/fairshare"
)

// DefaultLimit is how many misses may be in flight when nothing else is said. A miss that waits for a slow upstream holds
// about 30 kB (its goroutine, the question twice and its share of an upstream connection), so these are 30 MB, what a full
// cache takes; at 4.5 s a miss, the longest that the chain allows, they are 227 misses a second with an upstream that hangs.
const DefaultLimit = 1024

// Gate bounds the questions that are being asked of upstreams. The server blocks of all configurations that one process
// serves share one, so that a reload neither forgets what is in flight nor doubles what may be. It is safe for concurrent
// use; each call is a few dozen nanoseconds under one lock.
type Gate struct {
	limit atomic.Int64
	shed  [reasons]atomic.Uint64

	mu     sync.Mutex // guards the field below
	places fairshare.Places
}

// New makes a gate that lets limit misses in.
func New(limit int) *Gate {
	g := &Gate{places: fairshare.Of(limit)}
	g.SetLimit(limit)
	return g
}

// SetLimit changes the limit. What is in flight beyond it stays.
func (g *Gate) SetLimit(limit int) { g.limit.Store(int64(limit)) }

// reason says why a miss was not let in; admitted that it was.
type reason int

const (
	full     reason = iota // as many are in flight as may be
	share                  // the source has as many in flight as places are left
	reasons                // how many there are
	admitted reason = -1
)

// enter takes a place for src, or says why there is none. Who got one must leave. See package places for who gets how many.
func (g *Gate) enter(src netip.Addr) reason {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.places.SetMost(int(g.limit.Load()))
	why := admitted
	switch {
	case g.places.Free() <= 0:
		why = full
	case !g.places.MayTake(src):
		why = share
	}
	if why != admitted {
		g.shed[why].Add(1)
		return why
	}
	g.places.Take(src)
	return admitted
}

// leave gives src's place back.
func (g *Gate) leave(src netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.places.Give(src)
}

func (g *Gate) inFlight() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.places.Taken()
}
