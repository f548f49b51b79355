package node

import (
	"context"
	"net/netip"
	"slices"

	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/pkg/steer"
)

// reconcile reconciles all parts of the node with the plan, in the order of a start, and reports whether all of them are as planned. If ctx
// ends before the pods are reconciled, it returns true.
func (n *Node) reconcile(ctx context.Context, deep bool, probes *group) bool {
	s := n.plan()
	linkErr := n.reconcileLink(s)
	ok := n.noteFault("link", linkErr)
	ok = n.noteFault("rules", n.reconcileRules(s)) && ok
	ok = n.noteFault("firewall", n.reconcileFirewall(s, deep)) && ok
	if linkErr == nil {
		ok = n.noteFault("server", n.reconcileServer(ctx, s)) && ok
	}
	ok = n.noteFault("prober", n.repairPart("prober", n.Prober.Repair)) && ok
	if ctx.Err() != nil {
		return true
	}
	// The leases do not wait for the pods: a successor of another version may have a hundred pod tables to repair, which takes seconds, and a
	// lease of its predecessor lasts for less than one.
	n.startProbes(s, probes)
	counts, err := n.Pods.Reconcile(ctx, n.fallback, deep)
	if ctx.Err() == nil {
		ok = n.noteFault("pods", err) && ok
	}
	n.Recorder.Pods(counts)
	return ok
}

func (n *Node) reconcileLink(s plan.Plan) error {
	return n.repairPart("link", func() (string, error) {
		if s.Link.Foreign {
			return "", nil // another program manages this link; if it lacks addresses, the server's listen error names them
		}
		return n.Link.Ensure(s.Link.Name, s.Addresses())
	})
}

// reconcileFirewall makes the host's filter accept the agent's addresses. It checks iptables-legacy only at full checks (the first round
// is one) and while a lease is missing. It ignores an error while no probed target lacks its lease: packets to the addresses are then
// accepted anyway, or no target is probed yet.
func (n *Node) reconcileFirewall(s plan.Plan, deep bool) error {
	if !s.Firewall {
		return nil
	}
	err := n.repairPart("firewall", func() (string, error) { return n.Firewall(s.Addresses(), deep || n.lacksLease()) })
	if err != nil && !n.lacksLease() {
		return nil
	}
	return err
}

func (n *Node) reconcileRules(s plan.Plan) error {
	want, err := s.Host(n.Pods, n.Uplinks)
	if err != nil {
		return err
	}
	if err := n.unexempt(want.Exempt); err != nil {
		return err
	}
	return n.repairPart("rules", func() (string, error) {
		drift, err := n.Rules.Repair(want)
		if err != nil {
			return "", err
		}
		n.mu.Lock()
		n.rulesMade = true
		n.mu.Unlock()
		if len(drift) > 0 {
			// A rebuilt host table has no leases, and no record of TCP connections that the agent still serves. Until a probe renews the
			// lease, packets of these connections go to kube-dns, which resets them.
			n.probeNow()
		}
		return summarize(drift), nil
	})
}

// unexempt ends the exemption from interception of addresses whose pods opted out and are gone. The plugin's DEL does this too, but a
// round that read the pod's file just before may have exempted the address again, and the next pod with that address would not be
// intercepted.
func (n *Node) unexempt(optedOut []netip.Addr) error {
	gone := slices.DeleteFunc(slices.Clone(n.exempt), func(a netip.Addr) bool { return slices.Contains(optedOut, a) })
	if len(gone) > 0 {
		if err := n.Rules.Unexempt(gone...); err != nil {
			return err
		}
	}
	n.exempt = optedOut
	return nil
}

// reconcileServer starts the server if it does not serve, or restarts it if it lacks addresses. It does not hold mu meanwhile: only the
// loop's goroutine starts the server.
func (n *Node) reconcileServer(ctx context.Context, s plan.Plan) error {
	if n.isServing() {
		if !n.partial {
			return nil
		}
		err := n.Server.Restart(ctx, s.Server)
		n.partial = err != nil
		return err
	}
	// A server whose sockets have all failed still holds other resources. Stopping a server that never ran does nothing.
	if err := n.Server.Stop(); err != nil {
		n.Log.Warn("cannot stop the previous DNS server completely", "err", err)
	}
	if s.Unserved != nil {
		return s.Unserved
	}
	if err := n.Server.Start(ctx, s.Server); err != nil {
		return err
	}
	n.mu.Lock()
	n.serving = true
	n.mu.Unlock()
	n.Log.Info("serving", "addr", steer.JoinAddrs(s.Addresses(), ","))
	n.follow(n.Server.Done())
	return nil
}

// follow waits in the background until done is closed, because the server has ended. It then records that nothing is served, and starts a
// round.
func (n *Node) follow(done <-chan struct{}) {
	go func() { // ends with the server
		<-done
		n.mu.Lock()
		n.serving = false
		n.mu.Unlock()
		n.kick.Send() // without effect after an orderly stop
	}()
}
