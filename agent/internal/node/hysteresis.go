package node

import (
	"errors"
	"fmt"
	"time"

	"github.com/neardns/neardns/agent/internal/node/prober"
)

// When a lease goes and when it comes back.
//
// Explicit failures (a refusal, somebody else's answer, an answer that came too late) count three of the last five, so that
// one stray answer does not flap the lease. Silence needs no count, since the lease lapses by itself; nor do late answers one
// after another, which renew nothing.
//
// One loss to an explicit failure is forgiven at once, one to silence after a moment. Where they follow one another the agent
// is not dead but overloaded, or something comes and goes: it proves itself as soon as the load is gone, and the load comes
// back with the lease. So each further loss makes it rest twice as long before it is trusted again, kube-dns answering
// meanwhile; a loss for slowness is such a case from the first one on. A starved agent thus holds its lease for about a
// second or two at a time, three times in the first minute and once in each further one.
const (
	failuresKept  = 5
	failuresLimit = 3

	restSilent = 2 * time.Second // after a first loss to silence: it may have been hung, or starved
	restFirst  = 8 * time.Second // after a second loss, or one for slowness
	restLast   = time.Minute
	forgiven   = time.Minute // held that long, a lease's earlier losses are forgotten
	// A starved process answers some probes quickly.
	quickInARow = 3 // where it had to rest
)

// slowBound is how late an answer counts as a failure: a quarter of the lease's lifetime, 200 ms by default. An answer takes
// well under a millisecond, and up to 100 ms where the kernel lets the agent run only once in each period of its CPU quota
// (CFS bandwidth control), which is no reason to leave as long as it keeps up.
func slowBound(lifetime time.Duration) time.Duration { return lifetime / 4 }

// late tells whether an answer came too late, and how: slow while the lease stood, or after it had lapsed, which is what a
// process meets that was stopped for a while. The texts hold no measured figure, since the log says each reason once.
func late(took, lifetime time.Duration) (prober.Failure, error) {
	switch {
	case took > lifetime:
		return prober.Timeout, errors.New("answered after the lease's lifetime: the agent was stopped, or has no CPU time")
	case took > slowBound(lifetime):
		return prober.Slow, fmt.Errorf("answered later than %s: the agent has too little CPU time for what pods ask", slowBound(lifetime))
	}
	return prober.None, nil
}

// verdict is what to do after a probe.
type verdict int

const (
	wait     verdict = iota // neither renew nor withdraw
	renew                   // proven
	withdraw                // failed too often: the lease is to go now
	lapse                   // silent too long: the kernel has let it go by itself
)

// hysteresis is what one target's probes and losses say about the next. The zero value trusts.
type hysteresis struct {
	failed []bool    // the last explicit results, true for a failure
	quick  int       // proofs in a row
	losses int       // not forgiven yet
	until  time.Time // it rests
	rested bool      // it had to, since the last loss
	held   time.Time // since when, for forgiving
}

// weigh takes one result in and gives the verdict. held says whether the lease is held, late that its lifetime has passed
// without a renewal.
func (c *hysteresis) weigh(f prober.Failure, held, late bool, now time.Time) verdict {
	switch f {
	case prober.None:
		c.record(false)
		c.quick++
	case prober.Timeout, prober.Canceled:
		c.quick = 0
	default:
		c.record(true)
		c.quick = 0
	}
	if !held {
		if f != prober.None || now.Before(c.until) || c.rested && c.quick < quickInARow {
			return wait
		}
		c.held = now
		return renew
	}
	if c.losses > 0 && now.Sub(c.held) >= forgiven {
		c.losses = 0
	}
	switch {
	case f == prober.None:
		return renew
	case c.failures() >= failuresLimit:
		return withdraw
	case late:
		return lapse
	}
	return wait
}

// lose notes that the lease was lost because of f, and returns how long it is to rest.
func (c *hysteresis) lose(f prober.Failure, now time.Time) time.Duration {
	if f == prober.Slow && c.losses == 0 {
		c.losses = 1
	}
	c.losses++
	c.quick = 0
	d := rest(c.losses)
	if d == 0 && f == prober.Timeout {
		d = restSilent
	}
	c.until, c.rested = now.Add(d), d > 0
	return d
}

// rest is how long a lease is not sought after so many losses.
func rest(losses int) time.Duration {
	if losses < 2 {
		return 0
	}
	d := restFirst
	for range losses - 2 {
		if d *= 2; d >= restLast {
			return restLast
		}
	}
	return d
}

func (c *hysteresis) record(failed bool) {
	c.failed = append(c.failed, failed)
	if len(c.failed) > failuresKept {
		c.failed = c.failed[1:]
	}
}

func (c *hysteresis) failures() int {
	count := 0
	for _, failed := range c.failed {
		if failed {
			count++
		}
	}
	return count
}
