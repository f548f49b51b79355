package main

import "time"

// How often a list is written again that somebody else keeps writing without our entry. A network's own installer may do so
// a few times at its start (Calico and Cilium write at each restart of their pod), and is answered at once. Whoever goes on
// is fighting: then the runtime loads the network anew at each blow, and pods can fail to start.
const (
	freeWrites  = 3
	firstRest   = time.Second
	longestRest = 5 * time.Minute
	calm        = 10 * time.Minute // after so long without a blow it is no fight any more
)

// pace is the record of a fight. The zero value is peace.
type pace struct {
	streak int
	last   time.Time
	since  time.Time // of the streak
}

// note records that the entry had to be put back at now.
func (p *pace) note(now time.Time) {
	if p.streak == 0 || now.Sub(p.last) > calm {
		*p = pace{since: now}
	}
	p.streak++
	p.last = now
}

// rest is how long after the last blow the list is left alone.
func (p *pace) rest() time.Duration {
	if p.streak <= freeWrites {
		return 0
	}
	d := firstRest
	for range p.streak - freeWrites - 1 {
		if d *= 2; d >= longestRest {
			return longestRest
		}
	}
	return d
}

// wait is what is left of that rest at now.
func (p *pace) wait(now time.Time) time.Duration {
	return max(0, p.rest()-now.Sub(p.last))
}
