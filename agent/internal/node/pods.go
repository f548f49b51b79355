package node

import (
	"context"
	"net/netip"
	"time"

	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/tick"
)

// tryEvery is how often pods are asked from whose time has come; where there is none it costs a look into memory.
const tryEvery = 250 * time.Millisecond

// tryPods asks from the netns of pods that get no answers, beside the loop: a question that is lost takes its time.
func (n *Node) tryPods(ctx context.Context) {
	for tick.Grid(ctx, n.onGrid(tryEvery)) {
		changed, err := n.Pods.Try(ctx, n.leaseOf)
		if ctx.Err() != nil {
			return
		}
		n.note("trials", err)
		if changed {
			n.kick.Send()
		}
	}
}

// leaseOf is a pods.Lease.
func (n *Node) leaseOf(address netip.Addr, p steer.Protocol) (since, proven time.Time, held bool) {
	l, held := n.Held(steer.Client{Address: address, Protocol: p})
	return l.Since, l.Proven, held
}

// fallback is what pods may know of the way to a cluster DNS address.
func (n *Node) fallback(clusterDNS netip.Addr) pods.Fallback {
	proven := n.isProven(clusterDNS)
	n.mu.Lock()
	defer n.mu.Unlock()
	return pods.Fallback{Proven: proven, Lost: n.lost[clusterDNS]}
}
