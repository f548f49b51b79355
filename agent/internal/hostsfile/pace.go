package hostsfile

import (
	"math/rand/v2"
	"time"
)

// pace decides when to query. Rounds are `every` apart, a tenth more or less, so that not all nodes query at the same moment. A kube-dns
// with a cache may give the old address until its TTL ends; a few queries between two rounds, right after that end, keep a change from
// taking that time plus a round. It is pure: its caller passes the time.
type pace struct {
	every  time.Duration
	gap    time.Duration // at least, from an answer to a query between rounds
	spread time.Duration // over which nodes spread such queries: they share kube-dns's cache, and so the end of its TTL

	round time.Time   // the next one
	extra map[key]int // queries since the last round
}

func defaultPace() pace {
	return pace{every: 30 * time.Second, gap: 2 * time.Second, spread: 1500 * time.Millisecond, extra: map[key]int{}}
}

// maxExtra limits the queries of a key between two rounds, however short TTLs are. One is enough for a kube-dns with one cache; the second
// is for another replica's cache, which ends later.
const maxExtra = 2

// begin notes that a round begins, and returns the time to the next one.
func (p *pace) begin(now time.Time) time.Duration {
	tenth := p.every / 10
	wait := p.every - tenth + rand.N(2*tenth) //nolint:gosec // no secret depends on it
	p.round = now.Add(wait)
	clear(p.extra)
	return wait
}

// between returns the time to the next query between two rounds, if there is to be one.
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

// take lists the keys that are queried now, before the next full round, and counts them against their limit.
func (p *pace) take(now time.Time, known memory) (keys []key) {
	for k, f := range known {
		if p.worth(k, f) && !f.ends.After(now) {
			keys = append(keys, k)
			p.extra[k]++
		}
	}
	return keys
}

// worth reports whether a query between rounds can bring news: not if the next round comes about when the TTL ends.
func (p *pace) worth(k key, f fact) bool {
	return !f.ends.IsZero() && p.extra[k] < maxExtra && p.round.Sub(f.ends) > p.every/10
}
