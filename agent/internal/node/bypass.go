package node

import (
	"context"
	"time"

	"github.com/neardns/neardns/agent/internal/node/evidence"
	"github.com/neardns/neardns/pkg/steer"
)

// Evidence finds clients whose queries do not reach the agent, and has the switch bypass them.
type Evidence interface {
	Run(ctx context.Context, n evidence.Node)
	Bypassed() []evidence.Bypassed
}

// lookEvery is about how often the evidence is read: a client that repeats a query after a second is found by the second one, and its third is
// answered.
const lookEvery = 500 * time.Millisecond

// Pace implements evidence.Node. Looks fall on the grid of the probes. An event that closes the path for all pods ends the lease within its
// lifetime, so queries further apart than that are not lost to one such event.
func (n *Node) Pace() (every, gap time.Duration) {
	return n.onGrid(lookEvery), n.plan().Terms.Lifetime
}

// onGrid is the least time from one look to the next that lasts so long and falls on the grid of the probes.
func (n *Node) onGrid(least time.Duration) time.Duration {
	renew := n.plan().Terms.Renew
	return max(1, (least+renew-1)/renew) * renew
}

// Held implements evidence.Node.
func (n *Node) Held(c steer.Client) (evidence.Lease, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for t, l := range n.targets {
		if t.Address == c.Address && t.Protocol == c.Protocol {
			// A process that was stopped has not noticed yet that its lease lapsed.
			return evidence.Lease{Since: l.since, Proven: l.lastOK}, l.held && time.Since(l.lastOK) <= n.now.Terms.Lifetime
		}
	}
	return evidence.Lease{}, false
}
