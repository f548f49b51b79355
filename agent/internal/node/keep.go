package node

import (
	"context"
	"net/netip"
	"slices"

	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/pkg/steer"
)

// round brings everything to what the settings say, in the order of start, and reports whether all of it is so.
func (n *Node) round(ctx context.Context, deep bool, probes *group) bool {
	s := n.plan()
	linkErr := n.keepLink(s)
	ok := n.note("link", linkErr)
	ok = n.note("rules", n.keepRules(s)) && ok
	ok = n.note("firewall", n.keepFirewall(s, deep)) && ok
	if linkErr == nil {
		ok = n.note("server", n.keepServer(ctx, s)) && ok
	}
	ok = n.note("prober", n.mending("prober", n.Prober.Repair)) && ok
	if ctx.Err() != nil {
		return true
	}
	counts, err := n.Pods.Reconcile(ctx, n.fallback, deep)
	if ctx.Err() == nil {
		ok = n.note("pods", err) && ok
	}
	n.Recorder.Pods(counts)
	n.keepTargets(s, probes)
	return ok
}

func (n *Node) keepLink(s plan.Plan) error {
	return n.mending("link", func() (string, error) {
		if s.Link.Foreign {
			return "", nil // somebody else's to keep; where the addresses are missing, listening fails and says so
		}
		return n.Link.Ensure(s.Link.Name, s.Addresses())
	})
}

// keepFirewall looks at iptables-legacy only where something points to it: the start, the slow check and a missing lease.
// Where nothing can be added and every lease is held, somebody else let our addresses through already.
func (n *Node) keepFirewall(s plan.Plan, deep bool) error {
	if !s.Firewall {
		return nil
	}
	err := n.mending("firewall", func() (string, error) { return n.Firewall.Ensure(s.Addresses(), deep || n.lacksLease()) })
	if err != nil && !n.lacksLease() {
		return nil
	}
	return err
}

func (n *Node) keepRules(s plan.Plan) error {
	want, err := s.Host(n.Pods, n.Uplinks)
	if err != nil {
		return err
	}
	if err := n.unexempt(want.Exempt); err != nil {
		return err
	}
	return n.mending("rules", func() (string, error) {
		drift, err := n.Rules.Repair(want)
		if err != nil {
			return "", err
		}
		n.mu.Lock()
		n.ruled = true
		n.mu.Unlock()
		if len(drift) > 0 {
			// A table made anew has no lease and no drain: until the next proof each packet of a connection that the agent
			// serves goes to kube-dns, which resets it.
			n.mended.send()
		}
		return inWords(drift), nil
	})
}

// unexempt takes pods back that opted out and are gone. The plugin's DEL does so too, but a round that had read the pod's
// file just before would have put the address in again, for whichever pod gets it next.
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

// keepServer starts the server if it does not serve. The lock is not held meanwhile: only this goroutine starts it.
func (n *Node) keepServer(ctx context.Context, s plan.Plan) error {
	if n.isServing() {
		if !n.partial {
			return nil
		}
		err := n.Server.Restart(ctx, s.Server)
		n.partial = err != nil
		return err
	}
	// One whose sockets all died still holds what it was made of; stopping one that never ran does nothing.
	if err := n.Server.Stop(); err != nil {
		n.Log.Warn("what was left of a dead server did not end as it should", "err", err)
	}
	if s.Unserved != nil {
		return s.Unserved
	}
	err := n.Server.Start(ctx, s.Server)
	n.Recorder.Kept("server", err)
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.serving = true
	n.mu.Unlock()
	n.Log.Info("serving", "addr", steer.JoinAddrs(s.Addresses(), ","))
	n.follow(n.Server.Done())
	return nil
}

// follow notes the server's end.
func (n *Node) follow(done <-chan struct{}) {
	go func() { // ends with the server
		<-done
		n.mu.Lock()
		n.serving = false
		n.mu.Unlock()
		n.kick.Send() // after an orderly stop nobody listens
	}()
}
