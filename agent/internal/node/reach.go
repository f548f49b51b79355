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

// Intervals of the agent's own queries. While clients' queries are answered, or there are none, the agent queries now and then. A client's
// query that is not answered soon makes the agent query at once. A round ends with the first answer.
const (
	queryIdle    = 10 * time.Second
	queryGap     = time.Second            // between two rounds that clients' unanswered queries cause
	queryAgain   = 500 * time.Millisecond // after a round that failed
	queryTimeout = time.Second            // timeout of a query outside of a round
	roundLength  = 2 * time.Second        // length of a round: clients still get an answer that takes 1.9 s
	shortRound   = time.Second            // length of a round while leases are withdrawn, when pods get no hits from the cache
	// The fallback is checked twice in a round: at its beginning, if no answer came at once, and in its last part.
	fallbackFirst = 150 * time.Millisecond
	fallbackAgain = 1100 * time.Millisecond
	// If a round ends later than reachStalled after its length, its result is ignored: the agent or the whole machine stood still.
	roundStalled = 500 * time.Millisecond
)

// mayHaveLease reports whether a target may have its lease, and if not, why. It is called with mu held.
func (n *Node) mayHaveLease(t target) (bool, string) {
	if n.Upstreams == nil {
		return true, ""
	}
	// If no pod has a fallback, a missing answer is no reason to withhold the lease after the first try.
	if n.paths[n.now.ClusterDNSOf(t.Address)].Allows() || !n.now.Steers && (n.everAnswered || n.queryFault != "") {
		return true, ""
	}
	switch {
	case !n.everAnswered && n.queryFault == "":
		return false, "none of the agent's own queries was answered yet"
	case n.queryFault == "":
		return false, "the agent could not query for the names that pods need a moment ago; it waits before the next try"
	}
	return false, "the agent cannot query for the names that pods need"
}

// canQuery reports whether the agent's own queries are answered, and if not, why. It is called with mu held.
func (n *Node) canQuery() (bool, string) {
	if n.Upstreams == nil || n.everAnswered && n.queryFault == "" {
		return true, ""
	}
	if n.queryFault == "" {
		return false, "none of the agent's own queries was answered yet"
	}
	return false, n.queryFault
}

// runQueries sends the agent's own queries until ctx ends, and allows or withdraws leases by their results.
func (n *Node) runQueries(ctx context.Context) {
	for ctx.Err() == nil {
		n.noteProgress(&n.lastQuery)
		if !n.isServing() {
			tick.Pause(ctx, queryAgain/10) // the first lease waits for it
			continue
		}
		domain := n.plan().ClusterDomain
		if n.canServeAll() {
			if n.awaitTrouble(ctx) {
				n.queryRound(ctx)
				tick.Pause(ctx, queryGap)
				continue
			}
			if ago, ok := n.Upstreams.LastAnswer(domain); ok && ago < queryIdle {
				continue
			}
		}
		quiet, cancel := context.WithTimeout(ctx, queryTimeout)
		err := n.Upstreams.Check(quiet, domain, false)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			n.concludeAnswered()
		default:
			n.queryRound(ctx)
		}
		if !n.canServeAll() {
			tick.Pause(ctx, queryAgain)
		}
	}
}

// awaitTrouble waits until the next query is due, and reports whether a client's unanswered query is the reason.
func (n *Node) awaitTrouble(ctx context.Context) bool {
	idle := time.NewTimer(queryIdle)
	defer idle.Stop()
	select {
	case <-n.Upstreams.Trouble():
		return true
	case <-n.queryNow:
	case <-idle.C:
	case <-ctx.Done():
	}
	return false
}

// canServeAll reports whether the last queries were answered and every path allows leases.
func (n *Node) canServeAll() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	able := n.everAnswered && n.queryFault == ""
	for _, f := range n.now.Fallbacks() {
		able = able && n.paths[f.ClusterDNS].State == lease.Serving
	}
	return able
}

func (n *Node) concludeAnswered() {
	found := map[netip.Addr]lease.Round{}
	for _, f := range n.plan().Fallbacks() {
		found[f.ClusterDNS] = lease.Round{Answered: true}
	}
	n.conclude(found, nil)
}

// queryRound queries the upstreams for the length of a round, and checks meanwhile whether kube-dns answers pods.
func (n *Node) queryRound(parent context.Context) {
	s := n.plan()
	began := time.Now()
	length := roundLength
	off := n.pathsWithoutLease()
	if len(off) > 0 {
		length = shortRound
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
	var checks sync.WaitGroup
	name := "kubernetes.default.svc." + s.ClusterDomain + "."
	for _, f := range s.Fallbacks() {
		note(f.ClusterDNS, func(*lease.Round) {})
		if !s.Steers {
			continue // there is no fallback
		}
		checks.Go(func() {
			answered := n.checkFallback(ctx, f.Queried, name, length)
			note(f.ClusterDNS, func(r *lease.Round) { r.Fallback = answered })
		})
		if off[f.ClusterDNS] {
			checks.Go(func() {
				answered := n.queryFromPod(ctx, f.ClusterDNS, name)
				note(f.ClusterDNS, func(r *lease.Round) { r.Pod = answered })
			})
		}
	}
	err := n.Upstreams.Check(ctx, s.ClusterDomain, true)
	if err == nil {
		cancel()
	}
	checks.Wait()
	if parent.Err() != nil {
		return
	}
	took := time.Since(began)
	if ago, ok := n.Upstreams.LastAnswer(s.ClusterDomain); err != nil && ok && ago < took {
		err = nil // clients had answers meanwhile
	}
	if err == nil {
		for way := range found {
			found[way] = lease.Round{Answered: true}
		}
	} else if took > length+roundStalled {
		return // an answer may have come unnoticed
	}
	n.conclude(found, err)
}

// checkFallback makes the prober query kube-dns at the beginning and towards the end of a round. The result counts only if both agree,
// because kube-dns may have gone down or come back in between.
func (n *Node) checkFallback(ctx context.Context, asked netip.Addr, name string, length time.Duration) lease.Answer {
	at := []time.Duration{fallbackFirst, fallbackAgain}
	if length < roundLength {
		at = at[:1]
	}
	good, bad := 0, 0
	began := time.Now()
	for _, after := range at {
		if !tick.Pause(ctx, time.Until(began.Add(after))) || !n.rulesInPlace() {
			return lease.Unknown
		}
		one, cancel := context.WithTimeout(ctx, length/2-fallbackFirst)
		err := n.Prober.CheckFallback(one, asked, name)
		cancel()
		switch {
		case !n.rulesInPlace():
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

// queryFromPod queries kube-dns from a pod's own address, if there is a pod. The result affects the lease of all pods, never this pod
// alone.
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

// pathsWithoutLease are the paths whose leases are not allowed now.
func (n *Node) pathsWithoutLease() map[netip.Addr]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := map[netip.Addr]bool{}
	for addr, w := range n.paths {
		if !w.Allows() && w.State != lease.Starting {
			out[addr] = true
		}
	}
	return out
}

// conclusion is what a round of queries changed.
type conclusion struct {
	fails, failed bool     // the agent cannot query now; could not before
	allowed       bool     // a path allows leases again
	withdrawn     []target // whose leases must be withdrawn
	reason        string   // why they must be
}

// conclude applies what a round of queries showed. err is why the agent's own queries were not answered.
func (n *Node) conclude(found map[netip.Addr]lease.Round, err error) {
	why := ""
	if err != nil {
		why = "the agent cannot query for " + n.plan().ClusterDomain + " from this node: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	n.leaseLock.Lock()
	c := n.updatePaths(found, why, time.Now())
	for _, t := range c.withdrawn {
		if err := n.Lease.Withdraw(t.Address, t.Protocol); err != nil && !errors.Is(err, steer.ErrNoSwitch) {
			n.Log.Warn("lease not withdrawn; it expires by itself", "addr", t.Address, "protocol", t.Protocol, "err", err)
		}
	}
	n.leaseLock.Unlock()
	n.Recorder.CanQuery(err == nil)
	switch {
	case c.fails && !c.failed:
		n.Log.Error("this node cannot resolve the names that pods need", "err", err)
	case !c.fails && c.failed:
		n.Log.Info("this node can resolve the names that pods need again")
	}
	for _, t := range c.withdrawn {
		n.Recorder.Lease(t.Address, t.Protocol, false)
		n.Recorder.LeaseLost(lostUpstream)
		n.Log.Warn("lease withdrawn; kube-dns answers", "addr", t.Address, "protocol", t.Protocol, "reason", c.reason)
	}
	if c.allowed {
		n.probeNow.send() // each target is probed at once
	}
}

// updatePaths updates the state of each path by a round, and lists the leases that must be withdrawn.
func (n *Node) updatePaths(found map[netip.Addr]lease.Round, why string, now time.Time) conclusion {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := conclusion{fails: why != "", failed: n.queryFault != ""}
	n.queryFault = why
	n.everAnswered = n.everAnswered || !c.fails
	for addr, round := range found {
		before := n.paths[addr]
		after := before.Next(round, now)
		n.paths[addr] = after
		c.allowed = c.allowed || after.Allows() && !before.Allows()
		if after.Allows() || !before.Allows() {
			continue
		}
		for t, l := range n.targets {
			if n.now.ClusterDNSOf(t.Address) == addr && l.held {
				_, c.reason = n.mayHaveLease(t)
				l.held, l.since, l.reason = false, now, c.reason
				c.withdrawn = append(c.withdrawn, t)
			}
		}
	}
	maps.DeleteFunc(n.paths, func(addr netip.Addr, _ lease.Path) bool { _, ok := found[addr]; return !ok })
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

// lostUpstream is the reason for leases that are withdrawn although no probe failed.
const lostUpstream prober.Failure = "upstream"

// faultAsking is the part in a node's faults if its own queries are not answered.
const faultAsking = "asking"

// noteRefused records why a target has no lease although its probe was answered. The reason is logged once for all targets, elsewhere.
func (n *Node) noteRefused(t target, why string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.targets[t]; l != nil && !l.held {
		l.reason = why
	}
}

// grant renews a lease if the target may have one; if not, refused is the reason.
func (n *Node) grant(t target) (refused string, err error) {
	n.leaseLock.Lock() // this must not renew a lease that is withdrawn at the same time
	defer n.leaseLock.Unlock()
	n.mu.Lock()
	may, why := n.mayHaveLease(t)
	n.mu.Unlock()
	if !may {
		return why, nil
	}
	if err := n.Lease.Renew(t.Address, t.Protocol); err != nil {
		return "", err
	}
	n.noteRenewed(t)
	return "", nil
}
