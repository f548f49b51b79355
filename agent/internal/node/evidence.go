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

// evidenceEvery is about how often the agent reads the evidence of dropped queries. If a client repeats its query after a second, its
// second query gets it bypassed, and kube-dns answers its third.
const evidenceEvery = 500 * time.Millisecond

// Pace implements evidence.Node. The kernel's evidence is read when probes are sent, so that the process wakes up less often. gap is the
// lease's lifetime: an event that closes the path for all pods ends the lease within that time, so such an event cannot explain two lost
// queries further apart.
func (n *Node) Pace() (every, gap time.Duration) {
	return n.roundToProbes(evidenceEvery), n.plan().Terms.Lifetime
}

// roundToProbes rounds a duration up to a multiple of the interval between probes.
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
			// Check the time of the last renewal too: in a process that was stopped (SIGSTOP, a paused machine), held is still set
			// although the kernel has let the lease expire.
			return evidence.Lease{Since: l.since, Renewed: l.lastOK}, l.held && time.Since(l.lastOK) <= n.now.Terms.Lifetime
		}
	}
	return evidence.Lease{}, false
}
