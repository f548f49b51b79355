package authoritative

import (
	"hash/maphash"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// Rate bounds what one network is answered over UDP, so that whoever writes its address as the sender of questions gets little of the
// edge's answers to it. The zero value bounds nothing.
type Rate struct {
	Answers int            // a second, of one network; 0: no bound
	Slip    int            // one of so many answers beyond it is an empty one that says "truncated"; 0: none
	Exempt  []netip.Prefix // not bounded
}

func (r Rate) same(other Rate) bool {
	return r.Answers == other.Answers && r.Slip == other.Slip && slices.Equal(r.Exempt, other.Exempt)
}

// The networks that are counted together: what one owner usually has, as in BIND and Knot.
const (
	networkBits4 = 24
	networkBits6 = 56
)

// burst is how many seconds' worth of answers a network may take at once.
const burst = 2

// limiter counts answers by network, in a table of fixed size: networks that fall into one place share it. Each place holds a time, as
// the generic cell rate algorithm has it (ITU-T I.371): it moves on by the cost of each answer and must not be further ahead than
// the burst. It is safe for concurrent use and costs no allocation.
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

// verdict says what becomes of an answer.
type verdict int

const (
	full  verdict = iota
	short         // an empty one that says "truncated"
	none
)

// over tells what a client may get.
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
		return full // no client's question
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
