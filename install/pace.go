package main

import "time"

// pace delays repairs that another program keeps undoing. A few first repairs come without delay.
type pace struct {
	free           int           // repairs without a pause
	first, longest time.Duration // limits of the pause, which doubles with each repair
	calm           time.Duration // the conflict is over after this time without a repair

	streak int
	last   time.Time
	since  time.Time // when the streak began
}

// listPace returns the pace for a conflist entry that another program keeps removing. Three repairs are free, because Calico and Cilium
// write the list at each restart of their pod. The later pauses are long: the runtime reloads the network at each write, and pods can
// fail to start meanwhile.
func listPace() pace {
	return pace{free: 3, first: time.Second, longest: 5 * time.Minute, calm: 10 * time.Minute}
}

// rulesPace returns the pace for the host's rules. Nine repairs are free: an operator's work causes fewer in a row.
func rulesPace() pace {
	return pace{free: 9, first: 500 * time.Millisecond, longest: 5 * time.Second, calm: 10 * time.Second}
}

// note records a repair at now. It starts a new streak if the last repair is longer ago than calm.
func (p *pace) note(now time.Time) {
	if p.streak == 0 || now.Sub(p.last) > p.calm {
		p.streak, p.since = 0, now
	}
	p.streak++
	p.last = now
}

// rest returns the length of the pause after the last repair, 0 while repairs are free.
func (p *pace) rest() time.Duration {
	if p.streak <= p.free {
		return 0
	}
	return min(p.first<<min(p.streak-p.free-1, 20), p.longest)
}

// wait returns how much of that pause is left at now.
func (p *pace) wait(now time.Time) time.Duration {
	return max(0, p.rest()-now.Sub(p.last))
}
