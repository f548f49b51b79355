package node

import (
	"cmp"
	"time"

	"github.com/neardns/neardns/pkg/tick"
)

// maxLoopAge limits how long the loop may go without progress: by default it runs a round at least every 30 s, and may wait for locks of
// other programs. maxProbeAge limits this for the probes of a target, which is probed several times a second except for some seconds during
// a handover, and for the agent's own queries.
const (
	maxLoopAge  = 5 * time.Minute
	maxProbeAge = time.Minute
)

// Alive is for the liveness probe: it reports whether the node's loop, its queries and its probes make progress, and if not, which of
// them is stuck, because only a restart helps then. A missing lease, or anything else that is retried, is no reason for a restart.
func (n *Node) Alive() (bool, string) {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	if d := now.Sub(n.lastRound); !n.lastRound.IsZero() && d > max(maxLoopAge, 3*cmp.Or(n.now.Terms.Check, slowCheck)) {
		return false, "the node's loop has made no progress for " + d.Round(time.Second).String()
	}
	if d := now.Sub(n.lastQuery); !n.lastQuery.IsZero() && d > maxProbeAge {
		return false, "the agent's own queries have made no progress for " + d.Round(time.Second).String()
	}
	for t, l := range n.targets {
		if d := now.Sub(l.probed); !l.probed.IsZero() && d > maxProbeAge {
			return false, "the probe of " + t.String() + " has hung for " + d.Round(time.Second).String()
		}
	}
	return true, ""
}

// noteProgress stores the current time in *at, which is n.lastRound or n.lastQuery, for Alive.
func (n *Node) noteProgress(at *time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	*at = time.Now()
}

// noteProbe records that a probe of target t begins, for Alive, and returns the channel that requests the next one.
func (n *Node) noteProbe(t target) (requested tick.Chan) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.targets[t]; l != nil {
		l.probed, requested = time.Now(), l.now
	}
	return requested
}

// probeNow makes the probe loop of each target send a probe at once.
func (n *Node) probeNow() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.targets {
		l.now.Send()
	}
}
