package node

import (
	"cmp"
	"time"
)

// How long a part may be without a sign of life. The loop comes round every half a minute, and may wait for other programs' locks;
// a target is probed several times a second, but for the seconds of a hand-over.
const (
	loopMost  = 5 * time.Minute
	probeMost = time.Minute
)

// Alive reports whether everything that keeps the node goes on, and if not, what stands still: only a restart helps then. A lease
// that is not held is no reason, nor is anything that is tried again.
func (n *Node) Alive() (bool, string) {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	if d := now.Sub(n.rounded); !n.rounded.IsZero() && d > max(loopMost, 3*cmp.Or(n.now.Terms.Check, slowCheck)) {
		return false, "the node's loop has not come round for " + d.Round(time.Second).String()
	}
	if d := now.Sub(n.reaching); !n.reaching.IsZero() && d > probeMost {
		return false, "the agent has asked nothing by itself for " + d.Round(time.Second).String()
	}
	for t, l := range n.targets {
		if d := now.Sub(l.tended); !l.tended.IsZero() && d > probeMost {
			return false, "the probe of " + t.String() + " has hung for " + d.Round(time.Second).String()
		}
	}
	return true, ""
}

// live notes a sign of life.
func (n *Node) live(at *time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	*at = time.Now()
}

// tended notes that a target is probed.
func (n *Node) tended(t target) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.targets[t]; l != nil {
		l.tended = time.Now()
	}
}
