package node

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/tick"
)

// trialEvery is how often DueTrials reads the evidence of lost queries. Without any, a read costs almost nothing.
const trialEvery = 250 * time.Millisecond

// watchPods ticks when pod files change, and has their pods tried at once.
func (n *Node) watchPods(ctx context.Context) (<-chan struct{}, error) {
	changes, err := n.Pods.Watch(ctx)
	if err != nil {
		return nil, err
	}
	ticks := tick.New()
	go func() { // ends with the watch
		defer close(ticks)
		for range changes {
			n.tryNow.Send()
			ticks.Send()
		}
	}()
	return ticks, nil
}

// runTrials runs pod trials outside of the loop and next to each other, because a lost query has to time out.
func (n *Node) runTrials(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for ctx.Err() == nil {
		due := n.Pods.DueTrials(n.leaseOf, n.fallback)
		n.noteFault("trials", due.Fault)
		n.noteFault("adoption", due.Stopped)
		for _, t := range due.Trials {
			running.Go(func() { n.runTrial(ctx, t) })
		}
		wait := tick.UntilGrid(n.roundToProbes(trialEvery))
		if !due.Next.IsZero() {
			wait = min(wait, time.Until(due.Next))
		}
		select {
		case <-ctx.Done():
		case <-n.tryNow:
		case <-time.After(wait):
		}
	}
}

func (n *Node) runTrial(ctx context.Context, t pods.Trial) {
	// A trial of a young path waits as long as a probe: what answers probes within their time answers trials.
	n.Pods.RunTrial(ctx, t, n.leaseOf, n.plan().Terms.ProbeTimeout(), n.fallback)
	n.tryNow.Send() // the next trial may be due soon
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
