package hostsfile

import (
	"math/rand/v2"
	"time"
)

// pace decides when to query. Full rounds are `every` apart, plus or minus a tenth, so that not all nodes query at the same moment. A
// kube-dns with a cache may give an old address until its TTL ends. So that a change is not seen as late as that time plus a round, pace
// adds a few queries soon after the TTL ends. It reads no clock: the caller passes the time.
type pace struct {
	every  time.Duration
	gap    time.Duration // minimum time from an answer to a query between rounds
	spread time.Duration // nodes spread such queries over this time, because they share kube-dns's cache and so the end of a TTL

	round time.Time   // time of the next round
	extra map[key]int // by key: the queries that take has counted since the last full round began
}

func defaultPace() pace {
	return pace{every: 30 * time.Second, gap: 2 * time.Second, spread: 1500 * time.Millisecond, extra: map[key]int{}}
}

// maxExtra is the maximum number of queries of a key between two full rounds. One is enough for a kube-dns with one cache; the second is
// for another replica, whose entry expires later.
const maxExtra = 2

// begin is called when a full round begins. It returns the time until the next one.
func (p *pace) begin(now time.Time) time.Duration {
	tenth := p.every / 10
	wait := p.every - tenth + rand.N(2*tenth) //nolint:gosec // no secret depends on it
	p.round = now.Add(wait)
	clear(p.extra)
	return wait
}

// between returns the time until the next query between two full rounds; ok is false if there is none.
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

// take returns the keys to query now, before the next full round, and counts the queries.
func (p *pace) take(now time.Time, known memory) (keys []key) {
	for k, f := range known {
		if p.worth(k, f) && !f.ends.After(now) {
			keys = append(keys, k)
			p.extra[k]++
		}
	}
	return keys
}

// worth reports whether a query of k between full rounds can bring news. It cannot if the next full round is soon after the TTL ends.
func (p *pace) worth(k key, f fact) bool {
	return !f.ends.IsZero() && p.extra[k] < maxExtra && p.round.Sub(f.ends) > p.every/10
}
