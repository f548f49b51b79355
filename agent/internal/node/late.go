package node

import (
	"errors"
	"fmt"
	"time"

	"github.com/neardns/neardns/agent/internal/node/lease"
	"github.com/neardns/neardns/agent/internal/node/prober"
)

// slowBound is the time after which a probe's answer counts as too slow: a quarter of the lease's lifetime, 200 ms by default. An answer
// usually takes well under a millisecond. It takes up to 100 ms if a CPU limit lets the agent run only once in each period (CFS bandwidth
// control); such an answer is not too slow, and the agent keeps its lease.
func slowBound(lifetime time.Duration) time.Duration { return lifetime / 4 }

// lateAnswer returns the failure for an answer that took longer than slowBound, or longer than the lease's lifetime, for example because
// the process was stopped (SIGSTOP). It returns None and nil for an answer in time. The texts contain no measured time, because each
// distinct reason is logged only once.
func lateAnswer(took, lifetime time.Duration) (prober.Failure, error) {
	switch {
	case took > lifetime:
		return prober.Timeout, errors.New("answered after the lease's lifetime: the agent was stopped, or has no CPU time")
	case took > slowBound(lifetime):
		return prober.Slow, fmt.Errorf("answered later than %s: the agent has too little CPU time for pods' queries", slowBound(lifetime))
	}
	return prober.None, nil
}

// leaseProbe translates a probe's failure into the input of the lease's state machine.
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
