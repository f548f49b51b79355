package node

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"time"

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
	o := n.outlooks[n.now.WayOf(t.Address)]
	// Where nothing is given back, there is nothing to wait for once it was tried.
	if o != nil && o.allows() || !n.now.Steers && (n.reached || n.unasked != "") {
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
		o := n.outlooks[f.ClusterDNS]
		able = able && o != nil && o.stand == asking
	}
	return able
}

func (n *Node) reachedAll() {
	found := map[netip.Addr]finding{}
	for _, f := range n.plan().Fallbacks() {
		found[f.ClusterDNS] = finding{asked: true}
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
	found := map[netip.Addr]finding{}
	var mu sync.Mutex // guards found
	note := func(way netip.Addr, change func(*finding)) {
		mu.Lock()
		defer mu.Unlock()
		f := found[way]
		change(&f)
		found[way] = f
	}
	var beside sync.WaitGroup
	name := "kubernetes.default.svc." + s.ClusterDomain + "."
	for _, f := range s.Fallbacks() {
		note(f.ClusterDNS, func(*finding) {})
		if !s.Steers {
			continue // nobody stands behind us
		}
		beside.Go(func() {
			answered := n.proofs(ctx, f.Asked, name, length)
			note(f.ClusterDNS, func(x *finding) { x.proof = answered })
		})
		if off[f.ClusterDNS] {
			beside.Go(func() {
				answered := n.queryFromPod(ctx, f.ClusterDNS, name)
				note(f.ClusterDNS, func(x *finding) { x.pod = answered })
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
			found[way] = finding{asked: true}
		}
	} else if took > length+reachStalled {
		return // what was to be heard may have come
	}
	n.conclude(found, err)
}

// proofs has the prober ask kube-dns at the beginning and towards the end of a round. Only both together say something: kube-dns
// may have gone or come back in between.
func (n *Node) proofs(ctx context.Context, asked netip.Addr, name string, length time.Duration) told {
	at := []time.Duration{proofAfter, proofAgain}
	if length < reachRound {
		at = at[:1]
	}
	good, bad := 0, 0
	began := time.Now()
	for _, after := range at {
		if !tick.Pause(ctx, time.Until(began.Add(after))) || !n.switchStands() {
			return unsaid
		}
		one, cancel := context.WithTimeout(ctx, length/2-proofAfter)
		err := n.Prober.Prove(one, asked, name)
		cancel()
		switch {
		case !n.switchStands():
			return unsaid
		case err == nil:
			good++
		default:
			bad++
		}
	}
	switch {
	case bad == 0:
		return yes
	case good == 0:
		return no
	}
	return unsaid
}

// queryFromPod queries kube-dns from a pod's own address, if there is a pod. The result decides about the lease of all pods, never about this
// one.
func (n *Node) queryFromPod(ctx context.Context, clusterDNS netip.Addr, name string) told {
	sent, err := n.Pods.QueryKubeDNS(ctx, clusterDNS, name)
	switch {
	case !sent:
		return unsaid
	case err != nil:
		return no
	}
	return yes
}

// off are the ways whose leases are not allowed now.
func (n *Node) off() map[netip.Addr]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := map[netip.Addr]bool{}
	for way, o := range n.outlooks {
		if !o.allows() && o.stand != seeking {
			out[way] = true
		}
	}
	return out
}

// conclude draws the conclusions of a round. err is why the agent's own questions were not answered.
func (n *Node) conclude(found map[netip.Addr]finding, err error) {
	why := ""
	if err != nil {
		why = "the agent cannot ask for " + n.plan().ClusterDomain + " from this node: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	now := time.Now()
	allowed := false
	reason := "" // of the leases that go
	var gone []target
	n.granting.Lock()
	n.mu.Lock()
	before := n.unasked
	n.unasked = why
	n.reached = n.reached || err == nil
	first := true // of all ways
	for _, o := range n.outlooks {
		first = first && o.stand == seeking
	}
	for way, f := range found {
		o := n.outlooks[way]
		if o == nil {
			o = &outlook{}
			if !first && err == nil {
				o.stand, o.held = asking, now
			}
			n.outlooks[way] = o
		}
		was := o.allows()
		o.weigh(f, now)
		switch {
		case !was && o.allows():
			allowed = true
		case was && !o.allows():
			for t, l := range n.targets {
				if n.now.WayOf(t.Address) == way && l.held {
					_, reason = n.may(t)
					l.held, l.since, l.reason = false, now, reason
					gone = append(gone, t)
				}
			}
		}
	}
	maps.DeleteFunc(n.outlooks, func(way netip.Addr, _ *outlook) bool { _, ok := found[way]; return !ok })
	if why != "" && before == "" {
		n.fault = &Fault{Time: now, Part: faultAsking, What: why}
	}
	if why == "" {
		delete(n.faults, faultAsking)
	} else {
		n.faults[faultAsking] = why
	}
	n.mu.Unlock()
	for _, t := range gone {
		if err := n.Lease.Withdraw(t.Address, t.Protocol); err != nil && !errors.Is(err, steer.ErrNoSwitch) {
			n.Log.Warn("lease not withdrawn, it lapses by itself", "addr", t.Address, "protocol", t.Protocol, "err", err)
		}
	}
	n.granting.Unlock()
	n.Recorder.CanAsk(err == nil)
	switch {
	case why != "" && before == "":
		n.Log.Error("what pods need asked cannot be asked from this node", "err", err)
	case why == "" && before != "":
		n.Log.Info("what pods need asked can be asked again")
	}
	for _, t := range gone {
		n.Recorder.Lease(t.Address, t.Protocol, false)
		n.Recorder.Lost(lostUpstream)
		n.Log.Warn("lease given up, kube-dns is to answer", "addr", t.Address, "protocol", t.Protocol, "reason", reason)
	}
	if allowed {
		n.mended.send() // each target is proven at once
	}
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
