package hostsfile

import (
	"math/rand/v2"
	"time"
)

// pace says when to ask. Rounds are `every` apart, a tenth more or less, so that not all nodes ask at one moment. A kube-dns that keeps
// its answers may give the old address up to the end of their TTL: then a few questions come between two rounds, right after that end.
// Without them a change could take that time and a round more. It is pure: whoever waits passes the time.
type pace struct {
	every  time.Duration
	gap    time.Duration // from an answer to a question between rounds, at least
	spread time.Duration // such questions of all nodes go over this time, since they share kube-dns's cache and so the end

	round time.Time   // the next one
	extra map[key]int // questions since the last one
}

func defaultPace() pace {
	return pace{every: 30 * time.Second, gap: 2 * time.Second, spread: 1500 * time.Millisecond, extra: map[key]int{}}
}

// mostExtra bounds the questions between two rounds, however short TTLs are: of a name and family at most three are asked where one was.
// One is enough for a kube-dns with one cache; a second one is for another replica's, which ends later.
const mostExtra = 2

// begin notes that a round begins, and returns the time to the next one.
func (p *pace) begin(now time.Time) time.Duration {
	tenth := p.every / 10
	wait := p.every - tenth + rand.N(2*tenth) //nolint:gosec // nobody gains by knowing it
	p.round = now.Add(wait)
	clear(p.extra)
	return wait
}

// between returns the time to the next question between two rounds, if there is to be one.
func (p *pace) between(now time.Time, known memory) (wait time.Duration, ok bool) {
	var first time.Time
	for k, f := range known {
		if p.worth(k, f) && (first.IsZero() || f.ends.Before(first)) {
			first = f.ends
		}
	}
	if first.IsZero() {
		return 0, false
	}
	return max(first.Sub(now), p.gap) + rand.N(p.spread), true //nolint:gosec // as above
}

// take lists what is to be asked between two rounds now, and counts it.
func (p *pace) take(now time.Time, known memory) (keys []key) {
	for k, f := range known {
		if p.worth(k, f) && !f.ends.After(now) {
			keys = append(keys, k)
			p.extra[k]++
		}
	}
	return keys
}

// worth tells whether a question about it between rounds can bring news: not where the next round comes about when the TTL ends.
func (p *pace) worth(k key, f fact) bool {
	return !f.ends.IsZero() && p.extra[k] < mostExtra && p.round.Sub(f.ends) > p.every/10
}
