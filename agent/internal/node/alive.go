package node

import (
	"cmp"
	"time"
)

// How long a part may be without progress. The loop runs a round every half a minute, and may wait for other programs' locks. A target is
// probed several times a second, except for some seconds during a handover.
const (
	maxLoopAge  = 5 * time.Minute
	maxProbeAge = time.Minute
)

// Alive reports whether all parts of the loop make progress, and if not, which part is stuck: only a restart helps then. A missing lease is
// no reason for a restart, nor is anything that is retried.
func (n *Node) Alive() (bool, string) {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	if d := now.Sub(n.lastRound); !n.lastRound.IsZero() && d > max(maxLoopAge, 3*cmp.Or(n.now.Terms.Check, slowCheck)) {
		return false, "the node's loop has made no progress for " + d.Round(time.Second).String()
	}
	if d := now.Sub(n.lastQuery); !n.lastQuery.IsZero() && d > maxProbeAge {
		return false, "the agent has sent no query of its own for " + d.Round(time.Second).String()
	}
	for t, l := range n.targets {
		if d := now.Sub(l.probed); !l.probed.IsZero() && d > maxProbeAge {
			return false, "the probe of " + t.String() + " has hung for " + d.Round(time.Second).String()
		}
	}
	return true, ""
}

// noteProgress records that a part makes progress.
func (n *Node) noteProgress(at *time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	*at = time.Now()
}

// noteProbe records that a probe of a target begins.
func (n *Node) noteProbe(t target) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.targets[t]; l != nil {
		l.probed = time.Now()
	}
}
