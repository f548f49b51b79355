package node

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/neardns/neardns/agent/internal/node/plan"
)

const reloaded = "configuration reloaded"

// Set gives the loop a new plan, which replaces the current one as a whole or not at all. A plan that the running server refuses is
// dropped. A plan that fails because of the node is retried until it succeeds or Set is called again. Once the plan is applied, the loop
// calls take, which puts the rest of the configuration in force and reports whether that part changed. Any goroutine may call Set, also
// before Run. If it is called several times, the last plan counts. next must not be written to afterwards.
func (n *Node) Set(next plan.Plan, take func() (changed bool)) {
	n.mu.Lock()
	n.set = &retryPlan{plan: next, take: take, due: true}
	n.mu.Unlock()
	n.kick.Send()
}

// planDue reports whether to try the pending plan now: it was set since the last round, or its retry is due.
func (n *Node) planDue() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.set != nil {
		n.pending, n.set = *n.set, nil
	}
	return n.pending.due
}

// reload applies the pending plan. If that fails, the old plan stays in force.
func (n *Node) reload(ctx context.Context, probes *group) {
	old, next := n.plan(), n.pending.plan
	if samePlan(old, next) {
		n.mu.Lock()
		n.now.Unserved = next.Unserved
		n.mu.Unlock()
		if n.pending.take() {
			n.Recorder.Reload(true)
			n.Log.Info(reloaded)
		}
		n.clearPending()
		return
	}
	n.mu.Lock()
	n.reloading = true // the following changes of link and rules are intended, so they do not count as repairs
	n.mu.Unlock()
	again, err := n.apply(ctx, old, next, probes)
	n.Recorder.Reload(err == nil)
	if err != nil {
		if !again || n.pending.pause == 0 { // of a plan that is retried, log the first failure only
			n.Log.Error("new configuration not applied; the old one keeps serving", "err", err, "will_retry", again)
		}
		if !again {
			n.clearPending()
			return
		}
		n.pending.pause = min(max(2*n.pending.pause, retryFirst), retryLast)
		n.pending.due, n.pending.again = false, time.After(n.pending.pause)
		n.noteFault("configuration", err)
		return
	}
	n.pending.take()
	n.clearPending()
	// Remove from the link the addresses that only the old plan has.
	n.noteFault("link", n.reconcileLink(next))
	n.endReload() // after a failure the round does this, once it has put the old plan back
	n.Log.Info(reloaded)
}

// clearPending records that no new plan waits to be applied.
func (n *Node) clearPending() {
	n.pending = retryPlan{}
	n.noteFault("configuration", nil)
}

// apply replaces the plan old by next, or keeps old. again reports that the node and not the configuration was the obstacle, for example
// a lock or a port that another program holds, so that a retry may succeed.
func (n *Node) apply(ctx context.Context, old, next plan.Plan, probes *group) (again bool, err error) {
	// A new address is put on the link before the server binds it, and an old one loses its lease before the server closes it.
	n.withdrawGone(old, next, probes)
	if err := errors.Join(n.reconcileLink(next.WithAddressesOf(old)), n.reconcileRules(next)); err != nil {
		return true, err // reconcile, which follows in the same round, changes link and rules back to the old plan
	}
	serves := n.isServing()
	if serves {
		if err := n.Server.Restart(ctx, next.Server); err != nil {
			_, system := errors.AsType[syscall.Errno](err) // a port in use, no descriptors left
			return system, err
		}
	}
	if err := n.Prober.Reconfigure(next.Redirects, next.LocalAddresses()); err != nil {
		undo := n.Prober.Reconfigure(old.Redirects, old.LocalAddresses())
		if serves {
			undo = errors.Join(undo, n.Server.Restart(ctx, old.Server))
		}
		if undo != nil {
			n.Log.Error("rollback to the old configuration incomplete; the new one is retried", "err", undo)
		}
		return true, err
	}
	n.mu.Lock()
	n.now = next
	n.mu.Unlock()
	n.queryNow.Send() // the upstreams may have changed
	return false, nil
}

// retryPlan is a new plan that is not applied yet. The zero value stands for no plan.
type retryPlan struct {
	plan  plan.Plan
	take  func() (changed bool) // Set's argument take
	due   bool                  // try the plan in the next round
	again <-chan time.Time      // fires when to try the plan again; nil: it was not tried yet
	pause time.Duration         // pause before the next try; 0: the plan was not tried yet
}

// endReload makes changes of link and rules count as repairs again.
func (n *Node) endReload() {
	n.mu.Lock()
	n.reloading = false
	n.mu.Unlock()
}
