package node

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/neardns/neardns/agent/internal/node/lease"
	"github.com/neardns/neardns/agent/internal/node/prober"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/tick"
)

// Rhythm of the agent's own questions. While clients' questions are answered, or nobody asks, there is one now and then; a
// client's question that is not answered soon makes it ask at once. A round ends with the first answer.
const (
	reachIdle  = 10 * time.Second
	reachGap   = time.Second            // between two rounds that clients' trouble asks for
	reachAgain = 500 * time.Millisecond // after a round that failed
	reachQuiet = time.Second            // patience with the question that is asked now and then
	reachRound = 2 * time.Second        // a kube-dns that needs 1.9 s is heard by clients, too
	reachTurn  = time.Second            // a round of a turn: it costs pods what the cache still has
	// The proof is sought twice in a round, at its beginning, if no answer came at once, and in its last part.
	proofAfter = 150 * time.Millisecond
	proofAgain = 1100 * time.Millisecond
	// reachStalled is how late a round may end before it says nothing: the agent, or the whole machine, stood still.
	reachStalled = 500 * time.Millisecond
)

// may reports whether a target may have its lease; if not, why. It is called with mu held.
func (n *Node) may(t target) (bool, string) {
	if n.Upstreams == nil {
		return true, ""
	}
	// If no pod has a fallback, there is nothing to wait for once it was tried.
	if n.ways[n.now.WayOf(t.Address)].Allows() || !n.now.Steers && (n.reached || n.unasked != "") {
		return true, ""
	}
	switch {
	case !n.reached && n.unasked == "":
		return false, "no question of the agent's own was answered yet"
	case n.unasked == "":
		return false, "the agent could not ask what pods need asked a moment ago; it rests"
	}
	return false, "the agent cannot ask what pods need asked"
}

// canAsk reports whether the agent has asked, and can. It is called with mu held.
func (n *Node) canAsk() (bool, string) {
	if n.Upstreams == nil || n.reached && n.unasked == "" {
		return true, ""
	}
	if n.unasked == "" {
		return false, "no question of the agent's own was answered yet"
	}
	return false, n.unasked
}

// keepReach asks, for as long as ctx lasts, and lets the leases go and come by what it hears.
func (n *Node) keepReach(ctx context.Context) {
	for ctx.Err() == nil {
		n.live(&n.reaching)
		if !n.isServing() {
			tick.Pause(ctx, reachAgain/10) // the first lease waits for it
			continue
		}
		domain := n.plan().ClusterDomain
		if n.isAble() {
			if n.awaitTrouble(ctx) {
				n.roundOfQuestions(ctx)
				tick.Pause(ctx, reachGap)
				continue
			}
			if ago, ok := n.Upstreams.Heard(domain); ok && ago < reachIdle {
				continue
			}
		}
		quiet, cancel := context.WithTimeout(ctx, reachQuiet)
		err := n.Upstreams.Ask(quiet, domain, false)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			n.reachedAll()
		default:
			n.roundOfQuestions(ctx)
		}
		if !n.isAble() {
			tick.Pause(ctx, reachAgain)
		}
	}
}

// awaitTrouble waits for the next time to ask, and reports whether a client's trouble made it now.
func (n *Node) awaitTrouble(ctx context.Context) bool {
	idle := time.NewTimer(reachIdle)
	defer idle.Stop()
	select {
	case <-n.Upstreams.Trouble():
		return true
	case <-n.reask:
	case <-idle.C:
	case <-ctx.Done():
	}
	return false
}

// isAble reports whether there is nothing to find out.
func (n *Node) isAble() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	able := n.reached && n.unasked == ""
	for _, f := range n.now.Fallbacks() {
		able = able && n.ways[f.ClusterDNS].State == lease.Serving
	}
	return able
}

func (n *Node) reachedAll() {
	found := map[netip.Addr]lease.Round{}
	for _, f := range n.plan().Fallbacks() {
		found[f.ClusterDNS] = lease.Round{Answered: true}
	}
	n.conclude(found, nil)
}

// roundOfQuestions asks for a while what pods need asked, and beside it whether kube-dns answers pods.
func (n *Node) roundOfQuestions(parent context.Context) {
	s := n.plan()
	began := time.Now()
	length := reachRound
	off := n.off()
	if len(off) > 0 {
		length = reachTurn
	}
	ctx, cancel := context.WithTimeout(parent, length)
	defer cancel()
	found := map[netip.Addr]lease.Round{}
	var mu sync.Mutex // guards found
	note := func(way netip.Addr, change func(*lease.Round)) {
		mu.Lock()
		defer mu.Unlock()
		f := found[way]
		change(&f)
		found[way] = f
	}
	var beside sync.WaitGroup
	name := "kubernetes.default.svc." + s.ClusterDomain + "."
	for _, f := range s.Fallbacks() {
		note(f.ClusterDNS, func(*lease.Round) {})
		if !s.Steers {
			continue // nobody stands behind us
		}
		beside.Go(func() {
			answered := n.proofs(ctx, f.Asked, name, length)
			note(f.ClusterDNS, func(r *lease.Round) { r.Fallback = answered })
		})
		if off[f.ClusterDNS] {
			beside.Go(func() {
				answered := n.queryFromPod(ctx, f.ClusterDNS, name)
				note(f.ClusterDNS, func(r *lease.Round) { r.Pod = answered })
			})
		}
	}
	err := n.Upstreams.Ask(ctx, s.ClusterDomain, true)
	if err == nil {
		cancel()
	}
	beside.Wait()
	if parent.Err() != nil {
		return
	}
	took := time.Since(began)
	if ago, ok := n.Upstreams.Heard(s.ClusterDomain); err != nil && ok && ago < took {
		err = nil // clients had answers meanwhile
	}
	if err == nil {
		for way := range found {
			found[way] = lease.Round{Answered: true}
		}
	} else if took > length+reachStalled {
		return // what was to be heard may have come
	}
	n.conclude(found, err)
}

// proofs has the prober ask kube-dns at the beginning and towards the end of a round. Only both together say something: kube-dns
// may have gone or come back in between.
func (n *Node) proofs(ctx context.Context, asked netip.Addr, name string, length time.Duration) lease.Answer {
	at := []time.Duration{proofAfter, proofAgain}
	if length < reachRound {
		at = at[:1]
	}
	good, bad := 0, 0
	began := time.Now()
	for _, after := range at {
		if !tick.Pause(ctx, time.Until(began.Add(after))) || !n.switchStands() {
			return lease.Unknown
		}
		one, cancel := context.WithTimeout(ctx, length/2-proofAfter)
		err := n.Prober.Prove(one, asked, name)
		cancel()
		switch {
		case !n.switchStands():
			return lease.Unknown
		case err == nil:
			good++
		default:
			bad++
		}
	}
	switch {
	case bad == 0:
		return lease.Yes
	case good == 0:
		return lease.No
	}
	return lease.Unknown
}

// queryFromPod queries kube-dns from a pod's own address, if there is a pod. The result decides about the lease of all pods, never about this
// one.
func (n *Node) queryFromPod(ctx context.Context, clusterDNS netip.Addr, name string) lease.Answer {
	sent, err := n.Pods.QueryKubeDNS(ctx, clusterDNS, name)
	switch {
	case !sent:
		return lease.Unknown
	case err != nil:
		return lease.No
	}
	return lease.Yes
}

// off are the ways whose leases are not allowed now.
func (n *Node) off() map[netip.Addr]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := map[netip.Addr]bool{}
	for addr, w := range n.ways {
		if !w.Allows() && w.State != lease.Starting {
			out[addr] = true
		}
	}
	return out
}

// conclusion is what a round of queries changed.
type conclusion struct {
	fails, failed bool     // the agent cannot query now; could not before
	allowed       bool     // a way allows leases again
	withdrawn     []target // whose leases must go
	reason        string   // for that
}

// conclude applies what a round of queries showed. err is why the agent's own queries were not answered.
func (n *Node) conclude(found map[netip.Addr]lease.Round, err error) {
	why := ""
	if err != nil {
		why = "the agent cannot query for " + n.plan().ClusterDomain + " from this node: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	n.granting.Lock()
	c := n.weighRound(found, why, time.Now())
	for _, t := range c.withdrawn {
		if err := n.Lease.Withdraw(t.Address, t.Protocol); err != nil && !errors.Is(err, steer.ErrNoSwitch) {
			n.Log.Warn("lease not withdrawn; it expires by itself", "addr", t.Address, "protocol", t.Protocol, "err", err)
		}
	}
	n.granting.Unlock()
	n.Recorder.CanAsk(err == nil)
	switch {
	case c.fails && !c.failed:
		n.Log.Error("this node cannot query for the names that pods need", "err", err)
	case !c.fails && c.failed:
		n.Log.Info("this node can query again for the names that pods need")
	}
	for _, t := range c.withdrawn {
		n.Recorder.Lease(t.Address, t.Protocol, false)
		n.Recorder.Lost(lostUpstream)
		n.Log.Warn("lease withdrawn; kube-dns answers", "addr", t.Address, "protocol", t.Protocol, "reason", c.reason)
	}
	if c.allowed {
		n.mended.send() // each target is probed at once
	}
}

// weighRound takes a round into the state of each way, and notes which leases must go.
func (n *Node) weighRound(found map[netip.Addr]lease.Round, why string, now time.Time) conclusion {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := conclusion{fails: why != "", failed: n.unasked != ""}
	n.unasked = why
	n.reached = n.reached || !c.fails
	for addr, round := range found {
		before := n.ways[addr]
		after := before.Next(round, now)
		n.ways[addr] = after
		c.allowed = c.allowed || after.Allows() && !before.Allows()
		if after.Allows() || !before.Allows() {
			continue
		}
		for t, l := range n.targets {
			if n.now.WayOf(t.Address) == addr && l.held {
				_, c.reason = n.may(t)
				l.held, l.since, l.reason = false, now, c.reason
				c.withdrawn = append(c.withdrawn, t)
			}
		}
	}
	maps.DeleteFunc(n.ways, func(addr netip.Addr, _ lease.Way) bool { _, ok := found[addr]; return !ok })
	if !c.fails {
		delete(n.faults, faultAsking)
		return c
	}
	n.faults[faultAsking] = why
	if !c.failed {
		n.fault = &Fault{Time: now, Part: faultAsking, What: why}
	}
	return c
}

// lostUpstream is why leases go that no probe has failed for.
const lostUpstream prober.Failure = "upstream"

// faultAsking is the part of a node's faults that says that it cannot ask.
const faultAsking = "asking"

// refuse notes why a target that is proven has no lease. The log has had the reason, once for all targets.
func (n *Node) refuse(t target, why string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.targets[t]; l != nil && !l.held {
		l.reason = why
	}
}

// grant renews a lease if the target may have one; if not, refused says why.
func (n *Node) grant(t target) (refused string, err error) {
	n.granting.Lock() // a lease that is given up meanwhile must not come back by this
	defer n.granting.Unlock()
	n.mu.Lock()
	may, why := n.may(t)
	n.mu.Unlock()
	if !may {
		return why, nil
	}
	if err := n.Lease.Renew(t.Address, t.Protocol); err != nil {
		return "", err
	}
	n.hold(t)
	return "", nil
}
