package authoritative

import (
	"hash/maphash"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// Rate limits how many answers over UDP each client network gets, so that an attacker who sends queries with a forged source address
// cannot flood that network with answers. The zero value sets no limit.
type Rate struct {
	Answers int // per second and network; 0: no limit
	// of the answers above the limit, one in Slip is sent, empty and truncated, so that a real client retries over TCP; 0: none
	Slip   int
	Exempt []netip.Prefix // networks without a limit
}

func (r Rate) same(other Rate) bool {
	return r.Answers == other.Answers && r.Slip == other.Slip && slices.Equal(r.Exempt, other.Exempt)
}

// The prefix lengths of a client network, for IPv4 and IPv6: the size that one owner usually has.
const (
	networkBits4 = 24
	networkBits6 = 56
)

// burst is the number of seconds for which a network's unused answers are saved up, to be used at once.
const burst = 2

// limiter counts the answers to each client network in a table of fixed size; networks with the same hash share a slot. A slot has a
// time, as in the generic cell rate algorithm (ITU-T I.371). Each answer moves that time forward by 1/rate; an answer that would move
// it further than burst ahead of now is over the limit. It is safe for concurrent use and does not allocate.
type limiter struct {
	rate    Rate
	cost    int64 // nanoseconds by which an answer moves its slot's time
	seed    maphash.Seed
	begun   time.Time
	places  []atomic.Int64 // the slots' times, in nanoseconds since begun; nil: no limit
	slipped atomic.Uint64  // number of answers over the limit, of all networks
}

const limiterPlaces = 1 << 16

func newLimiter(r Rate) *limiter {
	l := &limiter{rate: r, seed: maphash.MakeSeed(), begun: time.Now()}
	if r.Answers > 0 {
		l.cost, l.places = int64(time.Second)/int64(r.Answers), make([]atomic.Int64, limiterPlaces)
	}
	return l
}

// verdict is how the rate limit lets a query be answered: fully, with an empty truncated answer, or not at all.
type verdict int

const (
	full  verdict = iota
	short         // an empty, truncated answer
	none
)

// over counts an answer to client, unless it is over the limit, and returns how the rate limit lets the query be answered.
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
