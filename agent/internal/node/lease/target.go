package lease

import "time"

// When a target loses its lease, and when it gets one again.
//
// Explicit failures (for example a refusal, another server's answer or a late answer) withdraw the lease if three of the last five results
// are failures, so that one stray answer does not. A missing answer needs no count, because the kernel lets the lease expire.
//
// After one loss to an explicit failure other than a late answer the target may have its lease again at once; after one loss to missing
// answers, two seconds later. If losses follow one another, the agent is not dead but overloaded, or a fault comes and goes: probes are
// answered as soon as the load is gone, and the load comes back with the lease. So the second loss costs 8 s without a lease (the rest),
// and each further one twice as long, up to a minute; meanwhile kube-dns answers. A first loss to late answers counts as a second one. An
// agent with too little CPU thus has its lease for a second or two at a time, three times in the first minute and once in each further
// minute.
const (
	resultsKept = 5 // how many results count: answers and explicit failures
	maxFailures = 3 // with so many failures among them, the lease is withdrawn

	restSilent   = 2 * time.Second // after a first loss to missing answers: the agent may have hung, or had no CPU time
	restFirst    = 8 * time.Second // after a second loss, or a first loss to late answers
	restMax      = time.Minute     // the longest rest
	forgiveAfter = time.Minute     // if the lease was held this long, its earlier losses are forgotten
	// After a rest, one answered probe is not enough: an agent with too little CPU answers some probes quickly.
	answersInARow = 3
)

// Probe is the result of one probe.
type Probe int

// The results.
const (
	Answered Probe = iota // the agent answered in time
	Silent                // no answer in time
	Canceled              // unknown: the caller gave the probe up
	Slow                  // an answer that came too late
	Failed                // any other explicit failure: for example, a refusal
)

// Verdict is what the caller must do with the lease after a probe.
type Verdict int

// The verdicts.
const (
	Wait     Verdict = iota // neither renew nor withdraw
	Renew                   // answered: renew the lease, or grant it
	Withdraw                // failed too often: withdraw the lease now
	Lapse                   // not renewed for too long: the kernel has let the lease expire
)

// Target is the history of one address and protocol: its probes and the losses of its lease. The zero value gets a lease at its first
// answered probe.
type Target struct {
	failed    []bool    // the last resultsKept answers in time (false) and explicit failures (true), oldest first
	inARow    int       // number of consecutive answered probes up to the last one, since the last loss
	losses    int       // losses that are not forgotten yet
	restUntil time.Time // no lease before this time
	rested    bool      // after the last loss, the target had to wait for its next lease
	heldSince time.Time // when the lease was last granted
}

// Next adds the result of a probe to the history and returns what to do with the lease. held is true if the lease is held now, and expired
// if its lifetime has passed since its last renewal.
func (t *Target) Next(p Probe, held, expired bool, now time.Time) Verdict {
	if p == Answered {
		t.inARow++
	} else {
		t.inARow = 0
	}
	if p != Silent && p != Canceled {
		t.failed = append(t.failed, p != Answered)
		t.failed = t.failed[max(0, len(t.failed)-resultsKept):]
	}
	if !held {
		if p != Answered || now.Before(t.restUntil) || t.rested && t.inARow < answersInARow {
			return Wait
		}
		t.heldSince = now
		return Renew
	}
	if t.losses > 0 && now.Sub(t.heldSince) >= forgiveAfter {
		t.losses = 0
	}
	switch {
	case p == Answered:
		return Renew
	case t.failures() >= maxFailures:
		return Withdraw
	case expired:
		return Lapse
	}
	return Wait
}

// Lose records that the lease was lost because of the result p, and returns how long the target must wait for its next lease.
func (t *Target) Lose(p Probe, now time.Time) time.Duration {
	if p == Slow && t.losses == 0 {
		t.losses = 1
	}
	t.losses++
	t.inARow = 0
	d := restAfter(t.losses)
	if d == 0 && p == Silent {
		d = restSilent
	}
	t.restUntil, t.rested = now.Add(d), d > 0
	return d
}

// restAfter returns how long a target or a Path waits for its next lease after the given number of losses, without restSilent.
func restAfter(losses int) time.Duration {
	if losses < 2 {
		return 0
	}
	return min(restFirst<<min(losses-2, 8), restMax) // a shift by 8 already exceeds restMax; the limit avoids an overflow
}

func (t *Target) failures() int {
	count := 0
	for _, failed := range t.failed {
		if failed {
			count++
		}
	}
	return count
}
