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

// trialEvery is about the longest time between two calls of DueTrials.
const trialEvery = 250 * time.Millisecond

// watchPods returns a channel that gets a tick when pod files change; the pod trials that are due then run at once.
func (n *Node) watchPods(ctx context.Context) <-chan struct{} {
	changes := n.Pods.Watch(ctx)
	ticks := tick.New()
	go func() { // ends when the watch closes changes
		defer close(ticks)
		for range changes {
			n.tryNow.Send()
			ticks.Send()
		}
	}()
	return ticks
}

// runTrials runs the due pod trials until ctx ends. They run concurrently and outside of the loop, because a trial whose query is lost
// has to wait for its timeout.
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
	// A trial of a pod whose path is new waits as long as a probe does: an agent that answers probes within that time also answers
	// trials.
	n.Pods.RunTrial(ctx, t, n.leaseOf, n.plan().Terms.ProbeTimeout(), n.fallback)
	n.tryNow.Send() // the path's next trial may be due earlier than runTrials would wake up
}

// leaseOf implements pods.Lease.
func (n *Node) leaseOf(address netip.Addr, p steer.Protocol) (since, renewed time.Time, held bool) {
	l, held := n.LeaseOf(steer.Client{Address: address, Protocol: p})
	return l.Since, l.Renewed, held
}

// fallback returns the state of the fallback to a cluster DNS address, for package pods.
func (n *Node) fallback(clusterDNS netip.Addr) pods.Fallback {
	n.mu.Lock()
	defer n.mu.Unlock()
	// Until a round has made the host's rules or found them in place, there may be no fallback, even if the record on disk lists it as
	// verified.
	verified := n.now.Steers && n.verified[clusterDNS] && n.rulesMade && n.faults["rules"] == ""
	return pods.Fallback{Verified: verified, Lost: n.lost[clusterDNS]}
}
