package limit

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/neardns/neardns/internal/dns/fairshare"
)

// DefaultLimit is the default maximum of misses in flight. A miss that waits for a slow upstream takes about 30 kB (its goroutine, the
// query twice and its share of an upstream connection), so the default takes 30 MB, as much as a full cache. If an upstream hangs and each
// miss takes 4.5 s (package forward's limit), 227 misses a second are let through.
const DefaultLimit = 1024

// Gate limits the queries in flight to upstreams. All server blocks of a process share one Gate, also across a reload, so that a reload
// neither forgets queries in flight nor doubles the limit. It is safe for concurrent use.
type Gate struct {
	shed [reasons]atomic.Uint64

	mu    sync.Mutex // guards the field below
	slots fairshare.Pool
}

// New returns a gate that admits limit misses at a time.
func New(limit int) *Gate { return &Gate{slots: fairshare.New(limit)} }

// SetLimit changes the limit. Queries in flight above it continue.
func (g *Gate) SetLimit(limit int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.slots.Resize(limit)
}

// reason is why a miss was refused; admitted if it was not.
type reason int

const (
	full     reason = iota // the limit is reached
	share                  // the client has its fair share in flight
	reasons                // the number of reasons
	admitted reason = -1
)

// enter takes a slot for a client's miss, or returns why it gets none. If it returns admitted, the caller must call leave. Package
// fairshare divides the slots among clients.
func (g *Gate) enter(client netip.Addr) reason {
	g.mu.Lock()
	defer g.mu.Unlock()
	why := admitted
	switch {
	case g.slots.Free() <= 0:
		why = full
	case !g.slots.MayAcquire(client):
		why = share
	}
	if why != admitted {
		g.shed[why].Add(1)
		return why
	}
	g.slots.Acquire(client)
	return admitted
}

// leave releases a client's slot.
func (g *Gate) leave(client netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.slots.Release(client)
}

// counts returns the number of queries in flight, and the limit.
func (g *Gate) counts() (inFlight, limit int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.slots.Used(), g.slots.Size()
}
