// Package loadbalance chooses one of several clusters for one client: among the healthy ones by region, then by weight.
//
// It guarantees a choice if at least one cluster has records of the queried type; region and health only narrow it. It is pure: its
// caller supplies the client's location, the health and a random number.
//
// If no healthy cluster is in a region of the client, it chooses from the host's default region, and after that from all healthy clusters.
// If no cluster at all is healthy, it ignores health.
package loadbalance

import "math/bits"

// Candidate is one cluster that may be chosen. Geo is its region code in lower case, or "".
type Candidate struct {
	Geo     string
	Default bool // its region is the host's default region
	// share among the candidates of the same group (see Of), for example of the same region; 0: standby, chosen only if no candidate of
	// the group with a weight above 0 can be
	Weight uint32
}

// State is whether a candidate can be chosen now.
type State int

// The states.
const (
	Absent State = iota // the cluster has no record of the queried type
	Sick                // the cluster has such records, but none of them is healthy
	Well                // at least one of them is healthy
)

// Reason is why a candidate was chosen.
type Reason int

// The reasons, in the order in which they are tried.
const (
	Geo       Reason = iota // by the client's location
	Default                 // no cluster that can be chosen is in a region of the client
	Any                     // no cluster that can be chosen is in the default region either
	Unhealthy               // no cluster at all is healthy, so health is ignored
	reasons
)

// Reasons lists all reasons.
func Reasons() []Reason { return []Reason{Geo, Default, Any, Unhealthy} }

func (r Reason) String() string { return [reasons]string{"geo", "default", "any", "unhealthy"}[r] }

// Of chooses a candidate and returns its index, or -1 if all are absent. place has the client's region codes, the smallest region
// first. state returns a candidate's state, which may change between Sick and Well during the call, but not from or to Absent. draw is a
// uniform random number.
//
// Of chooses from the first of these groups that is not empty: the candidates in the client's smallest region, in its next larger one,
// and so on; those in the default region; all. Absent candidates are in no group, and neither are Sick ones unless no candidate is Well.
// Within a group, the probability of a candidate is proportional to its weight; if all weights are 0, all are equally likely. Of does not
// allocate.
func Of(candidates []Candidate, place []string, state func(int) State, draw uint64) (int, Reason) {
	for _, least := range [...]State{Well, Sick} {
		for _, code := range place {
			if i := pick(candidates, group{code: code}, state, least, draw); i >= 0 {
				return i, because(Geo, least)
			}
		}
		if i := pick(candidates, group{isDefault: true}, state, least, draw); i >= 0 {
			return i, because(Default, least)
		}
		if i := pick(candidates, group{all: true}, state, least, draw); i >= 0 {
			return i, because(Any, least)
		}
	}
	return -1, Any
}

func because(r Reason, least State) Reason {
	if least == Sick {
		return Unhealthy
	}
	return r
}

// group selects the candidates among which pick chooses, for example those of one region.
type group struct {
	code           string
	isDefault, all bool
}

func (g group) holds(c *Candidate) bool {
	return g.all || g.isDefault && c.Default || g.code != "" && c.Geo == g.code
}

// pick chooses a candidate of a group whose state is at least least, with a probability proportional to its weight; -1 if there is none.
func pick(candidates []Candidate, g group, state func(int) State, least State, draw uint64) int {
	var sum, count uint64 // no overflow: at most 2^32 candidates, with weights below 2^32
	for i := range candidates {
		if g.holds(&candidates[i]) && state(i) >= least {
			sum += uint64(candidates[i].Weight)
			count++
		}
	}
	if count == 0 {
		return -1
	}
	equal := sum == 0
	if equal {
		sum = count
	}
	// The high word of the product is a uniform number from 0 to sum-1, except for a bias of at most sum/2^64.
	at, _ := bits.Mul64(draw, sum)
	for i := range candidates {
		if !g.holds(&candidates[i]) || state(i) < least {
			continue
		}
		part := uint64(candidates[i].Weight)
		if equal {
			part = 1
		}
		if at < part {
			return i
		}
		at -= part
	}
	return -1 // a state changed during the call
}
