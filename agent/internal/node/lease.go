package node

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/neardns/neardns/agent/internal/node/lease"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/agent/internal/node/prober"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/tick"
)

// target is an address and protocol with its own lease.
type target = plan.Target

// targetLease is the state of one target's lease.
type targetLease struct {
	held    bool      // the agent has this lease
	since   time.Time // when held last changed, or when the target was added
	lastOK  time.Time // when the lease was last renewed
	probed  time.Time // when the last probe began
	reason  string    // why the lease is not held; "" while it is
	logged  []string  // the reasons that were logged since the lease was last held
	history lease.Target
	now     tick.Chan // makes the probe loop send a probe at once
}

// startProbes starts a probe loop for each target of the plan that has none. It does nothing while the server does not run.
func (n *Node) startProbes(s plan.Plan, probes *group) {
	if !n.isServing() {
		return
	}
	want := s.Targets()
	n.mu.Lock()
	var fresh []target
	for _, t := range want {
		if n.targets[t] == nil {
			n.targets[t] = &targetLease{since: time.Now(), reason: "not probed yet", now: tick.New()}
			fresh = append(fresh, t)
		}
	}
	n.mu.Unlock()
	for _, t := range fresh {
		n.Recorder.Lease(t.Address, t.Protocol, false)
		probes.start(t.String(), func(ctx context.Context) { n.probeTarget(ctx, t) })
	}
}

// withdrawGone stops the probes and withdraws the leases of targets that the next plan does not have.
func (n *Node) withdrawGone(old, next plan.Plan, probes *group) {
	keep := next.Targets()
	for _, t := range old.Targets() {
		if !slices.Contains(keep, t) {
			n.withdraw(t, probes)
		}
	}
}

// withdraw removes a target: it stops its probes and withdraws its lease.
func (n *Node) withdraw(t target, probes *group) {
	probes.end(t.String())
	n.withdrawLease(t)
	n.Recorder.LeaseGone(t.Address, t.Protocol)
	n.mu.Lock()
	delete(n.targets, t)
	n.mu.Unlock()
}

// withdrawLease withdraws a target's lease in the kernel.
func (n *Node) withdrawLease(t target) {
	if err := n.Lease.Withdraw(t.Address, t.Protocol); err != nil && !errors.Is(err, steer.ErrNoSwitch) {
		n.Log.Warn("cannot withdraw the lease; it expires within its lifetime", "addr", t.Address, "protocol", t.Protocol, "err", err)
	}
}

// lacksLease reports whether a known target has no lease. It is false until the server has run, because there is no target before.
func (n *Node) lacksLease() bool {
	return len(n.targetsWhere(func(l *targetLease) bool { return !l.held })) > 0
}

// anyLease selects all targets in targetsWhere.
func anyLease(*targetLease) bool { return true }

// targetsWhere lists the known targets whose lease want selects, in no order.
func (n *Node) targetsWhere(want func(*targetLease) bool) []target {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []target
	for t, l := range n.targets {
		if want(l) {
			out = append(out, t)
		}
	}
	return out
}

// probeTarget probes one target at intervals until ctx ends, and passes each result to judge. Only one probe is in flight at a time, so
// after the process was stopped (SIGSTOP) it can act on at most one old answer.
func (n *Node) probeTarget(ctx context.Context, t target) {
	for {
		requested := n.noteProbe(t)
		begun := time.Now()
		s := n.plan()
		probeCtx, cancel := context.WithTimeout(ctx, s.Terms.ProbeTimeout())
		result := n.Prober.Probe(probeCtx, t.Queried, t.Protocol)
		cancel()
		if ctx.Err() != nil {
			return
		}
		// All targets are probed at the same instants, because waking the process costs more than a probe does. A failed probe is
		// repeated sooner, because a lease that is held expires soon.
		wait := tick.UntilGrid(s.Terms.Renew)
		if !n.judge(t, result, s.Terms.Lifetime) {
			wait = min(wait, max(0, s.Terms.Renew/2-time.Since(begun)))
		}
		select {
		case <-time.After(wait):
		case <-requested:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// judge renews or withdraws a target's lease by the result of a probe. It reports whether the probe was answered in time by this agent
// (or by its accepted successor) and the lease, if the target may have one, was renewed.
func (n *Node) judge(t target, r prober.Result, lifetime time.Duration) (answered bool) {
	if r.Failure == prober.None && !n.isOwnAnswer(r.Instance) {
		r.Failure, r.Err = prober.WrongAnswer, fmt.Errorf("another agent (%s) answered", r.Instance)
	}
	if r.Failure == prober.None {
		r.Failure, r.Err = lateAnswer(r.Took, lifetime)
	}
	n.Recorder.Probe(string(r.Failure))
	verdict := n.verdictOf(t, r.Failure, lifetime)
	if verdict == lease.Renew {
		refused, err := n.grant(t)
		if refused != "" {
			n.noteRefused(t, refused)
			return true
		}
		if err == nil {
			return true
		}
		if errors.Is(err, steer.ErrNoSwitch) {
			n.kick.Send()
		}
		r.Failure, r.Err = prober.Network, err
		verdict = n.verdictOf(t, r.Failure, lifetime)
	}
	n.noteFailure(t, r, verdict)
	return r.Failure == prober.None
}

// grant renews a target's lease. If the results of the agent's own queries forbid that, it returns the reason in refused.
func (n *Node) grant(t target) (refused string, err error) {
	n.leaseLock.Lock() // so that no lease is renewed right after conclude has withdrawn it
	defer n.leaseLock.Unlock()
	n.mu.Lock()
	why := n.withheld(t)
	n.mu.Unlock()
	if why != "" {
		return why, nil
	}
	if err := n.Lease.Renew(t.Address, t.Protocol); err != nil {
		return "", err
	}
	n.noteRenewed(t)
	return "", nil
}

// noteRefused records why a target has no lease although its probe was answered. It logs nothing, because conclude logs when no upstream
// answers.
func (n *Node) noteRefused(t target, why string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.targets[t]; l != nil && !l.held {
		l.reason = why
	}
}

// verdictOf adds a probe's result to the target's history, and returns what to do with its lease.
func (n *Node) verdictOf(t target, f prober.Failure, lifetime time.Duration) lease.Verdict {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.targets[t]
	if l == nil {
		return lease.Wait
	}
	return l.history.Next(leaseProbe(f), l.held, time.Since(l.lastOK) > lifetime, time.Now())
}

// isOwnAnswer reports whether an answer came from this agent, or from a successor that reads the same sockets.
func (n *Node) isOwnAnswer(instance string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return instance == n.instance || n.successors[instance] > 0
}

func (n *Node) noteRenewed(t target) {
	n.mu.Lock()
	l := n.targets[t]
	if l == nil {
		n.mu.Unlock()
		return
	}
	now := time.Now()
	changed, down := !l.held, now.Sub(l.since)
	if changed || now.Sub(l.lastOK) > n.now.Terms.Lifetime { // in a process that was stopped, the kernel has let it expire
		l.held, l.since, l.reason, l.logged = true, now, "", nil
	}
	l.lastOK = now
	n.mu.Unlock()
	if changed {
		n.Recorder.Lease(t.Address, t.Protocol, true)
		n.Log.Info("lease granted", "addr", t.Address, "protocol", t.Protocol, "missing_for", down.Round(time.Millisecond))
	}
}

// noteFailure records why a target has no lease, and withdraws the lease if the verdict demands it.
func (n *Node) noteFailure(t target, r prober.Result, v lease.Verdict) {
	n.mu.Lock()
	l := n.targets[t]
	if l == nil {
		n.mu.Unlock()
		return
	}
	now := time.Now()
	lost := v == lease.Withdraw || v == lease.Lapse
	var rest time.Duration
	if lost {
		l.held, l.since = false, now
		rest = l.history.Lose(leaseProbe(r.Failure), now)
	}
	news := false
	if !l.held && r.Err != nil { // after an answered probe, r.Err is nil and the recorded reason stays
		news = l.isNews(r.Err.Error())
		l.reason = r.Err.Error()
	}
	if lost && r.Err != nil {
		n.fault = &Fault{Time: now, Part: "lease " + t.String(), What: r.Err.Error()}
	}
	n.mu.Unlock()
	if v == lease.Withdraw {
		n.withdrawLease(t)
	}
	switch {
	case lost:
		n.kick.Send() // the host's firewall may be the reason, and some changes of it send no event: check the rules now
		n.Recorder.Lease(t.Address, t.Protocol, false)
		n.Recorder.LeaseLost(string(r.Failure))
		n.Log.Warn("lease lost; kube-dns answers, except kernel hits", "addr", t.Address, "protocol", t.Protocol, "reason", r.Err, "wait", rest)
	case news:
		n.kick.Send()
		n.Log.Info("no lease; kube-dns answers, except kernel hits", "addr", t.Address, "protocol", t.Protocol, "reason", r.Err)
	}
}

// isNews reports whether a reason should be logged. Each distinct reason is logged once while the lease is missing, because a firewall
// that rejects some packets and drops others makes two reasons alternate. At most maxLogged reasons are logged, in case none ever
// repeats.
func (l *targetLease) isNews(reason string) bool {
	const maxLogged = 8
	if slices.Contains(l.logged, reason) || len(l.logged) == maxLogged {
		return false
	}
	l.logged = append(l.logged, reason)
	return true
}

// samePlan reports whether two plans are equal except for Unserved, which reload takes over without a change of the node.
func samePlan(a, b plan.Plan) bool {
	a.Unserved, b.Unserved = nil, nil
	return reflect.DeepEqual(a, b)
}

// group runs named goroutines. Each can be stopped by its name, and all of them together.
type group struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	one    map[string]func() // by name: stops that goroutine and waits for its end
}

func newGroup(ctx context.Context) *group {
	ctx, cancel := context.WithCancel(ctx)
	return &group{ctx: ctx, cancel: cancel, one: map[string]func(){}}
}

func (g *group) start(name string, run func(context.Context)) {
	ctx, cancel := context.WithCancel(g.ctx)
	done := make(chan struct{})
	g.mu.Lock()
	g.one[name] = func() { cancel(); <-done }
	g.mu.Unlock()
	g.wg.Go(func() {
		defer close(done)
		defer cancel()
		run(ctx)
	})
}

// end stops the goroutine with this name, and waits until it has ended.
func (g *group) end(name string) {
	g.mu.Lock()
	stop := g.one[name]
	delete(g.one, name)
	g.mu.Unlock()
	if stop != nil {
		stop()
	}
}

func (g *group) stop() {
	g.cancel()
	g.wg.Wait()
}
