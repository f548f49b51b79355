package authoritative

import (
	"hash/maphash"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// Rate limits the answers to one network over UDP, so that an attacker who forges its address as the source of queries cannot flood it
// with the edge's answers. The zero value sets no limit.
type Rate struct {
	Answers int            // per second and network; 0: no limit
	Slip    int            // one of every Slip answers above the limit is sent empty and truncated; 0: none
	Exempt  []netip.Prefix // networks without a limit
}

func (r Rate) same(other Rate) bool {
	return r.Answers == other.Answers && r.Slip == other.Slip && slices.Equal(r.Exempt, other.Exempt)
}

// The prefix lengths of the networks that are counted together: what one owner usually has, as in BIND and Knot.
const (
	networkBits4 = 24
	networkBits6 = 56
)

// burst is how many seconds' worth of answers a network may get at once.
const burst = 2

// limiter counts answers by network in a table of fixed size; networks with the same hash share a slot. Each slot holds a time, as in the
// generic cell rate algorithm (ITU-T I.371): it advances by the cost of each answer and must not be ahead of the present by more than the
// burst. It is safe for concurrent use and does not allocate.
type limiter struct {
	rate    Rate
	cost    int64 // nanoseconds
	seed    maphash.Seed
	begun   time.Time
	places  []atomic.Int64 // nanoseconds since begun
	slipped atomic.Uint64
}

const limiterPlaces = 1 << 16

func newLimiter(r Rate) *limiter {
	l := &limiter{rate: r, seed: maphash.MakeSeed(), begun: time.Now()}
	if r.Answers > 0 {
		l.cost, l.places = int64(time.Second)/int64(r.Answers), make([]atomic.Int64, limiterPlaces)
	}
	return l
}

// verdict is how a query is answered under the limit.
type verdict int

const (
	full  verdict = iota
	short         // an empty, truncated answer
	none
)

// over returns how a client's query is answered.
func (l *limiter) over(client netip.Addr) verdict {
	if l.places == nil {
		return full
	}
	for _, p := range l.rate.Exempt {
		if p.Contains(client) {
			return full
		}
	}
	bits := networkBits4
	if client.Is6() {
		bits = networkBits6
	}
	network, err := client.Prefix(bits)
	if err != nil {
		return full // not a client's address
	}
	place := &l.places[maphash.Comparable(l.seed, network)%limiterPlaces]
	now := int64(time.Since(l.begun))
	for {
		old := place.Load()
		next := max(old, now) + l.cost
		if next-now > burst*int64(time.Second) {
			if n := l.slipped.Add(1); l.rate.Slip > 0 && n%uint64(l.rate.Slip) == 0 {
				return short
			}
			return none
		}
		if place.CompareAndSwap(old, next) {
			return full
		}
	}
}
