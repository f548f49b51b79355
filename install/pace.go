package main

import "time"

// pace spaces out repairs that another program keeps undoing. The first ones are never delayed.
type pace struct {
	free           int           // repairs without a pause
	first, longest time.Duration // pauses: each is twice the one before
	calm           time.Duration // a conflict ends after so long without another repair

	streak int
	last   time.Time
	since  time.Time // of the streak
}

// listPace is for an entry that another program keeps removing from the list. A network's own installer may write the list a few times at
// its start (Calico and Cilium write at each restart of their pod). The pauses are long because the runtime reloads the network at each
// write, and pods can fail to start.
func listPace() pace {
	return pace{free: 3, first: time.Second, longest: 5 * time.Minute, calm: 10 * time.Minute}
}

// rulesPace is for the host's rules. Nine repairs in a row are more than an operator's work causes.
func rulesPace() pace {
	return pace{free: 9, first: 500 * time.Millisecond, longest: 5 * time.Second, calm: 10 * time.Second}
}

// note records a repair at now.
func (p *pace) note(now time.Time) {
	if p.streak == 0 || now.Sub(p.last) > p.calm {
		p.streak, p.since = 0, now
	}
	p.streak++
	p.last = now
}

// rest is the pause after the last repair.
func (p *pace) rest() time.Duration {
	if p.streak <= p.free {
		return 0
	}
	return min(p.first<<min(p.streak-p.free-1, 20), p.longest)
}

// wait is the rest of that pause at now.
func (p *pace) wait(now time.Time) time.Duration {
	return max(0, p.rest()-now.Sub(p.last))
}
