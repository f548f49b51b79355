package main

import "time"

// How often the watch restores an entry that another program keeps removing from the list. A network's own installer may write the list a
// few times at its start (Calico and Cilium write at each restart of their pod); the watch restores the entry at once then. More writes are
// a conflict, with a growing backoff: the runtime reloads the network at each write, and pods can fail to start.
const (
	freeWrites  = 3
	firstRest   = time.Second
	longestRest = 5 * time.Minute
	calm        = 10 * time.Minute // a conflict ends after so long without another write
)

// pace is the record of a conflict. The zero value is none.
type pace struct {
	streak int
	last   time.Time
	since  time.Time // of the streak
}

// note records that the entry had to be restored at now.
func (p *pace) note(now time.Time) {
	if p.streak == 0 || now.Sub(p.last) > calm {
		*p = pace{since: now}
	}
	p.streak++
	p.last = now
}

// rest is the backoff after the last restored entry.
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

// wait is the rest of that backoff at now.
func (p *pace) wait(now time.Time) time.Duration {
	return max(0, p.rest()-now.Sub(p.last))
}
