// Package loadbalance chooses one of several clusters for one client: by geo, then health, then weight. It is pure: where the client is, who
// is well and the draw come from its caller.
//
// Failure policy: there is a choice wherever somebody has what is asked for. Geo and health only narrow it down.
package loadbalance

import "math/bits"

// Candidate is one cluster as it may be chosen. Geo is a code in lower case, "" for none.
type Candidate struct {
	Geo     string
	Default bool   // its geo is the host's default one
	Weight  uint32 // its part among those of its geo; 0: standby, chosen where nobody with a weight can be
}

// State tells whether a candidate can be chosen now.
type State int

// The states.
const (
	Absent State = iota // it has nothing that is asked for
	Sick                // its targets failed their health checks
	Well
)

// Reason tells what led to a choice.
type Reason int

// The reasons, in the order in which they are tried.
const (
	Geo       Reason = iota // the client's place
	Default                 // nobody is for the client's place
	Any                     // nor for a default geo
	Unhealthy               // nobody is well, so that health says nothing
	reasons
)

// Reasons lists all of them.
func Reasons() []Reason { return []Reason{Geo, Default, Any, Unhealthy} }

func (r Reason) String() string { return [reasons]string{"geo", "default", "any", "unhealthy"}[r] }

// Of chooses among candidates, by their place in the list; -1 where all are absent. place has the client's codes, the narrowest first.
// state tells of the candidate at a place in the list how it is; it must say the same throughout a call. draw is a random number,
// uniform over all of its values.
//
// The first of these groups that holds anybody is chosen from: those of the client's narrowest code, of the next one, and so on; those
// of the default geo; all. Only the well are in them, unless nobody is well anywhere. In a group weights are parts of their sum; where
// all are 0, the parts are equal. It costs no allocation.
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

// group is who is tried together.
type group struct {
	code           string
	isDefault, all bool
}

func (g group) holds(c *Candidate) bool {
	return g.all || g.isDefault && c.Default || g.code != "" && c.Geo == g.code
}

// pick chooses one of a group by weight; -1 where nobody is in it.
func pick(candidates []Candidate, g group, state func(int) State, least State, draw uint64) int {
	var sum, count uint64 // no more than 2^32 candidates, of weights below 2^32
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
	// The high word of the product is uniform over 0 to sum-1, but for sum/2^64.
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
	return -1 // a state changed amid the call
}
