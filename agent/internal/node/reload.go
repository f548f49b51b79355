package node

import (
	"context"
	"errors"
	"time"

	"github.com/neardns/neardns/agent/internal/node/plan"
)

const reloaded = "configuration reloaded"

// Set has the loop make the node what next says. The loop takes it over whole, or goes on with what runs: a plan that the server
// refuses is dropped, and one that this node does not let in is tried again until another is set. changed tells that the configuration
// differs, be it only in what no plan has and the caller took over itself: the loop reports such a reload, too. Any goroutine may call
// Set, also before Run; of several plans the last counts. Nobody may write into next afterwards.
func (n *Node) Set(next plan.Plan, changed bool) {
	n.mu.Lock()
	n.set = &next
	n.changed = n.changed || changed
	n.mu.Unlock()
	n.kick.Send()
}

// dueNow is the plan to take over, and whether to try it now: one that was set since, or one whose next try is due.
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

// reload takes next over. Where that fails, the old plan is what runs.
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
	n.moving = true // what changes now was asked for
	n.mu.Unlock()
	defer n.moved()
	again, err := n.take(ctx, old, next, probes)
	n.Recorder.Reload(err == nil)
	if err != nil {
		if !again || n.owed.wait == 0 { // once
			n.Log.Error("new configuration not taken over, the old one keeps serving", "err", err, "again", again)
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
	// Addresses that went are free for others from here on.
	n.note("link", n.keepLink(next))
	n.Log.Info(reloaded)
}

// settle notes that no plan is owed any more.
func (n *Node) settle() {
	n.owed = retry{}
	n.note("configuration", nil)
}

// take makes next what runs, or leaves old running. again tells that not the configuration but the node was in the way, such
// as a lock that another program holds.
func (n *Node) take(ctx context.Context, old, next plan.Plan, probes *group) (again bool, err error) {
	// Addresses that come are on the link before the server binds them; those that go lose their lease before it lets go.
	n.withdrawGone(old, next, probes)
	if err := errors.Join(n.keepLink(next.Beside(old)), n.keepRules(next)); err != nil {
		return true, err // the round puts link and rules back
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
			n.Log.Error("not all is set back to the old configuration", "err", undo)
		}
		return true, err
	}
	n.mu.Lock()
	n.now = next
	n.mu.Unlock()
	n.reask.Send() // there may be others to ask
	return false, nil
}

// retry is a plan that is to be tried, or tried again. The zero value is none.
type retry struct {
	plan    plan.Plan
	changed bool // Set said so of it, or of one that it replaced untried
	due     time.Time
	wait    time.Duration // before the next try; 0: it was not tried yet
}

func (d *retry) put(now time.Time) {
	d.wait = min(max(2*d.wait, retryFirst), retryLast)
	d.due = now.Add(d.wait)
}

// hasten makes what is owed due.
func (d *retry) hasten(now time.Time) {
	if !d.due.IsZero() {
		d.due = now
	}
}

func (d *retry) isDue(now time.Time) bool { return !d.due.IsZero() && !now.Before(d.due) }

// until is how long to wait for what is owed, if anything is.
func (d *retry) until(now time.Time) (time.Duration, bool) {
	return max(d.due.Sub(now), 0), !d.due.IsZero()
}

// moved says that from here on a difference is a fault again.
func (n *Node) moved() {
	n.mu.Lock()
	n.moving = false
	n.mu.Unlock()
}
