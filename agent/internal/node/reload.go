package node

import (
	"context"
	"errors"
	"time"

	"github.com/neardns/neardns/agent/internal/node/plan"
)

const reloaded = "configuration reloaded"

// Set gives the loop a new plan. The loop takes it over as a whole, or keeps the old one: a plan that the server refuses is dropped, and
// one that the node does not accept is retried until another is set. changed reports that the configuration differs, even if only in fields
// that the plan does not have; the loop reports such a reload too. Any goroutine may call Set, also before Run. Of several plans, the last
// one counts. next must not be written to afterwards.
func (n *Node) Set(next plan.Plan, changed bool) {
	n.mu.Lock()
	n.set = &next
	n.changed = n.changed || changed
	n.mu.Unlock()
	n.kick.Send()
}

// dueNow is the plan to take over, and whether to try it now: a plan that was set since the last round, or one whose retry is due.
func (n *Node) dueNow() (next plan.Plan, due bool) {
	n.mu.Lock()
	set, changed := n.set, n.changed
	n.set, n.changed = nil, false
	n.mu.Unlock()
	now := time.Now()
	if set != nil {
		n.owed = retry{plan: *set, changed: changed || n.owed.changed, due: now}
	}
	return n.owed.plan, n.owed.isDue(now)
}

// reload takes next over. If that fails, the old plan stays.
func (n *Node) reload(ctx context.Context, next plan.Plan, probes *group) {
	old := n.plan()
	if same(old, next) {
		n.mu.Lock()
		n.now.Unserved = next.Unserved
		n.mu.Unlock()
		if n.owed.changed {
			n.Recorder.Reload(true)
			n.Log.Info(reloaded)
		}
		n.settle()
		return
	}
	n.mu.Lock()
	n.moving = true // changes from here on are intended, so they are no repairs
	n.mu.Unlock()
	defer n.moved()
	again, err := n.take(ctx, old, next, probes)
	n.Recorder.Reload(err == nil)
	if err != nil {
		if !again || n.owed.wait == 0 { // log it once
			n.Log.Error("new configuration not applied; the old one keeps serving", "err", err, "again", again)
		}
		if !again {
			n.settle()
			return
		}
		n.owed.put(time.Now())
		n.note("configuration", err)
		return
	}
	n.settle()
	// Remove the addresses that the new plan does not have.
	n.note("link", n.keepLink(next))
	n.Log.Info(reloaded)
}

// settle records that no plan is left to take over.
func (n *Node) settle() {
	n.owed = retry{}
	n.note("configuration", nil)
}

// take replaces the plan old by next, or keeps old. again reports that not the configuration but the node was the obstacle, for example a
// lock that another program holds.
func (n *Node) take(ctx context.Context, old, next plan.Plan, probes *group) (again bool, err error) {
	// New addresses are on the link before the server binds them; old ones lose their lease before the server closes them.
	n.withdrawGone(old, next, probes)
	if err := errors.Join(n.keepLink(next.Beside(old)), n.keepRules(next)); err != nil {
		return true, err // the round restores link and rules
	}
	serves := n.isServing()
	if serves {
		if err := n.Server.Restart(ctx, next.Server); err != nil {
			return false, err
		}
	}
	if err := n.Prober.Reconfigure(next.Redirects, next.LocalAddresses()); err != nil {
		undo := n.Prober.Reconfigure(old.Redirects, old.LocalAddresses())
		if serves {
			undo = errors.Join(undo, n.Server.Restart(ctx, old.Server))
		}
		if undo != nil {
			n.Log.Error("rollback to the old configuration incomplete", "err", undo)
		}
		return true, err
	}
	n.mu.Lock()
	n.now = next
	n.mu.Unlock()
	n.reask.Send() // the upstreams may have changed
	return false, nil
}

// retry is a plan to be taken over, with the time of the next try. The zero value is none.
type retry struct {
	plan    plan.Plan
	changed bool // Set's argument, for it or for an untried plan that it replaced
	due     time.Time
	wait    time.Duration // before the next try; 0: not tried yet
}

func (d *retry) put(now time.Time) {
	d.wait = min(max(2*d.wait, retryFirst), retryLast)
	d.due = now.Add(d.wait)
}

// hasten makes a pending plan due now.
func (d *retry) hasten(now time.Time) {
	if !d.due.IsZero() {
		d.due = now
	}
}

func (d *retry) isDue(now time.Time) bool { return !d.due.IsZero() && !now.Before(d.due) }

// until is how long to wait for the next try, if a plan is pending.
func (d *retry) until(now time.Time) (time.Duration, bool) {
	return max(d.due.Sub(now), 0), !d.due.IsZero()
}

// moved records that a difference from the plan is a fault again.
func (n *Node) moved() {
	n.mu.Lock()
	n.moving = false
	n.mu.Unlock()
}
