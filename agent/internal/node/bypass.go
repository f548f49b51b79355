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

// evidenceEvery is about how often the evidence is read. A client that repeats a query after a second is found by its second query, and
// kube-dns answers its third.
const evidenceEvery = 500 * time.Millisecond

// Pace implements evidence.Node. The evidence is read on the grid of the probes. An event that closes the path for all pods ends the lease
// within its lifetime, so two lost queries that are further apart are not due to one such event.
func (n *Node) Pace() (every, gap time.Duration) {
	return n.roundToProbes(evidenceEvery), n.plan().Terms.Lifetime
}

// roundToProbes rounds an interval up to the grid of the probes.
func (n *Node) roundToProbes(least time.Duration) time.Duration {
	renew := n.plan().Terms.Renew
	return max(1, (least+renew-1)/renew) * renew
}

// LeaseOf implements evidence.Node.
func (n *Node) LeaseOf(c steer.Client) (evidence.Lease, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for t, l := range n.targets {
		if t.Address == c.Address && t.Protocol == c.Protocol {
			// Compare times too: a process that was stopped (SIGSTOP, a paused machine) still has held set, although the kernel's lease has
			// expired.
			return evidence.Lease{Since: l.since, Renewed: l.lastOK}, l.held && time.Since(l.lastOK) <= n.now.Terms.Lifetime
		}
	}
	return evidence.Lease{}, false
}
