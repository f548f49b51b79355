package lease

import "time"

// How a target's lease goes and comes back.
//
// Explicit failures (a refusal, another server's answer, an answer that came too late) count if they are three of the last five, so
// that one stray answer does not flap the lease. Silence needs no count, because the lease expires by itself; nor do late answers one
// after another, which renew nothing.
//
// After one loss to an explicit failure the target may have its lease again at once; after one loss to silence, two seconds later. If
// losses follow one another, the agent is not dead but overloaded, or a fault comes and goes: probes are answered as soon as the load is
// gone, and the load comes back with the lease. So each further loss doubles the rest before the next lease, while kube-dns answers; a loss
// to slow answers counts as a further one from the start. A starved agent thus has its lease for a second or two at a time, three times in
// the first minute and once in each further one.
const (
	resultsKept = 5
	maxFailures = 3

	restSilent   = 2 * time.Second // after a first loss to silence: the agent may have been hung, or starved
	restFirst    = 8 * time.Second // after a second loss, or one to slowness
	restMax      = time.Minute
	forgiveAfter = time.Minute // a lease that was held so long has its earlier losses forgotten
	// A starved process answers some probes quickly.
	answersInARow = 3 // if it had to rest
)

// Probe is the result of one probe.
type Probe int

// The results.
const (
	Answered Probe = iota // the agent answered in time
	Silent                // no answer
	Canceled              // nothing is known
	Slow                  // an answer that came too late
	Failed                // any other explicit failure
)

// Verdict is what to do after a probe.
type Verdict int

// The verdicts.
const (
	Wait     Verdict = iota // neither renew nor withdraw
	Renew                   // answered
	Withdraw                // failed too often: the lease must go now
	Lapse                   // silent too long: the kernel has let it expire
)

// Target is the history of one address and protocol: its probes and its lost leases. The zero value may have a lease.
type Target struct {
	failed    []bool    // the last explicit results
	inARow    int       // answered probes
	losses    int       // not forgiven yet
	restUntil time.Time // no lease before
	rested    bool      // it had to rest since the last loss
	heldSince time.Time
}

// Next adds one probe and returns what to do. held: the lease is held. expired: its lifetime has passed without a renewal.
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

// Lose notes that the lease was lost because of p, and returns how long the target rests.
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

// restAfter is how long no lease is sought after so many losses.
func restAfter(losses int) time.Duration {
	if losses < 2 {
		return 0
	}
	d := restFirst
	for range losses - 2 {
		if d *= 2; d >= restMax {
			return restMax
		}
	}
	return d
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
