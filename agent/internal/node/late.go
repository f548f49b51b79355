package node

import (
	"errors"
	"fmt"
	"time"

	"github.com/neardns/neardns/agent/internal/node/lease"
	"github.com/neardns/neardns/agent/internal/node/prober"
)

// slowBound is the time after which an answer counts as a failure: a quarter of the lease's lifetime, 200 ms by default. An answer takes
// well under a millisecond, and up to 100 ms if the kernel lets the agent run only once in each period of its CPU quota (CFS bandwidth
// control). That is no reason to withdraw the lease as long as the agent keeps up.
func slowBound(lifetime time.Duration) time.Duration { return lifetime / 4 }

// lateAnswer returns a failure for an answer that took too long: longer than slowBound, or than the lease's lifetime, as after the process
// was stopped for a while. The texts have no measured figure, because each reason is logged once.
func lateAnswer(took, lifetime time.Duration) (prober.Failure, error) {
	switch {
	case took > lifetime:
		return prober.Timeout, errors.New("answered after the lease's lifetime: the agent was stopped, or has no CPU time")
	case took > slowBound(lifetime):
		return prober.Slow, fmt.Errorf("answered later than %s: the agent has too little CPU time for pods' queries", slowBound(lifetime))
	}
	return prober.None, nil
}

// leaseProbe translates a probe's result for the lease's state machine.
func leaseProbe(f prober.Failure) lease.Probe {
	switch f {
	case prober.None:
		return lease.Answered
	case prober.Timeout:
		return lease.Silent
	case prober.Canceled:
		return lease.Canceled
	case prober.Slow:
		return lease.Slow
	}
	return lease.Failed
}
