package node

import (
	"context"
	"net/netip"
	"time"

	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/tick"
)

// trialEvery is how often due pod trials are run. If none is due, a run costs almost nothing.
const trialEvery = 250 * time.Millisecond

// runTrials runs pod trials outside of the loop, because a lost query has to time out.
func (n *Node) runTrials(ctx context.Context) {
	for tick.Grid(ctx, n.roundToProbes(trialEvery)) {
		changed, err := n.Pods.RunTrials(ctx, n.leaseOf)
		if ctx.Err() != nil {
			return
		}
		n.noteFault("trials", err)
		if changed {
			n.kick.Send()
		}
	}
}

// leaseOf implements pods.Lease.
func (n *Node) leaseOf(address netip.Addr, p steer.Protocol) (since, renewed time.Time, held bool) {
	l, held := n.LeaseOf(steer.Client{Address: address, Protocol: p})
	return l.Since, l.Renewed, held
}

// fallback is the state of the fallback to a cluster DNS address, for pods.
func (n *Node) fallback(clusterDNS netip.Addr) pods.Fallback {
	verified := n.isVerified(clusterDNS)
	n.mu.Lock()
	defer n.mu.Unlock()
	return pods.Fallback{Verified: verified, Lost: n.lost[clusterDNS]}
}
