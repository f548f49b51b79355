package node

import (
	"context"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/neardns/neardns/agent/internal/node/lease"
	"github.com/neardns/neardns/pkg/tick"
)

// Intervals of the agent's own queries to its upstreams. Every queryIdle the agent sends one, unless an upstream has answered a client
// meanwhile. A value from Upstreams.Trouble starts a round of queries, at once or queryGap after the round before. A round ends with its
// first answer.
const (
	queryIdle    = 10 * time.Second
	queryGap     = time.Second            // from the end of a round that Upstreams.Trouble started to the next one
	queryAgain   = 500 * time.Millisecond // pause after any other check or round while no upstream answers or a path is not Serving
	queryTimeout = time.Second            // timeout of a check outside of a round, which queries the servers one after the other
	roundLength  = 2 * time.Second        // length of a round: longer than the 1.9 s that a client's query waits for silent upstreams
	shortRound   = time.Second            // length of a round while leases are withdrawn, because pods then get nothing from the cache
	// If no upstream has answered by then, a round checks the fallback this long after its beginning. A short round has only the first
	// check.
	fallbackFirst = 150 * time.Millisecond
	fallbackAgain = 1100 * time.Millisecond
	// The failure of a round that ends more than roundStalled late is ignored, because the process or the machine was probably stopped.
	roundStalled = 500 * time.Millisecond
)

// withheld returns why a target must not have its lease as far as the upstreams are concerned; "" if it may have one. The caller holds mu.
func (n *Node) withheld(t target) string {
	fault := n.cannotQuery()
	switch {
	// Without a fallback, withholding the lease helps no pod. So it is withheld only until the first result of the agent's queries.
	case n.Upstreams == nil, n.paths[n.now.ClusterDNSOf(t.Address)].Allows(), !n.now.Steers && fault != noneYet:
		return ""
	case fault == noneYet:
		return noneYet
	case fault == "":
		return "upstreams do not answer the agent's queries steadily yet; kube-dns answers until they do"
	}
	return "the agent cannot query for the names that pods need"
}

// noneYet is why the agent cannot query before the first result of its queries.
const noneYet = "none of the agent's own queries was answered yet"

// cannotQuery returns why upstreams do not answer the agent's own queries; "" if they do. The caller holds mu.
func (n *Node) cannotQuery() string {
	if n.Upstreams != nil && !n.everAnswered && n.queryFault == "" {
		return noneYet
	}
	return n.queryFault
}

// runQueries sends the agent's own queries to its upstreams until ctx ends, and allows or withdraws leases by the results.
func (n *Node) runQueries(ctx context.Context) {
	for ctx.Err() == nil {
		n.noteProgress(&n.lastQuery)
		if !n.isServing() {
			tick.Pause(ctx, queryAgain/10) // short, because the first lease waits for this query
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

// awaitTrouble waits until Upstreams.Trouble or queryNow has a value, queryIdle is over, or ctx ends. It returns true for the first.
func (n *Node) awaitTrouble(ctx context.Context) bool {
	select {
	case <-n.Upstreams.Trouble():
		return true
	case <-n.queryNow:
	case <-time.After(queryIdle):
	case <-ctx.Done():
	}
	return false
}

// canServeAll reports whether upstreams answered the last queries and every path is in the state Serving.
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

// queryRound queries the upstreams until one answers, at most for the length of a round, and meanwhile checks whether kube-dns answers
// pods. Both results decide whether leases are allowed.
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
			continue // without steering, the node has no fallback to check
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
		err = nil // the upstreams answered clients during the round
	}
	if err == nil {
		for way := range found {
			found[way] = lease.Round{Answered: true}
		}
	} else if took > length+roundStalled {
		return // the process was probably stopped, so it may have missed an answer
	}
	n.conclude(found, err)
}

// checkFallback runs the fallback check fallbackFirst after the beginning of a round and, unless it is a short one, again after
// fallbackAgain. If the two checks disagree, the result is Unknown, because kube-dns may have gone down or come back in between. It is also
// Unknown if the host's rules are missing before or after a check, or if ctx ends before one.
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

// queryFromPod queries kube-dns from the addresses of up to three steered pods. It returns Unknown if no query could be sent from any. The
// result decides about the leases, and so about all pods, never about these pods alone.
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

// pathsWithoutLease returns the cluster DNS addresses for which leases are not allowed now, without those in the state Starting.
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

// conclusion lists what a round of queries changed.
type conclusion struct {
	fails, failed bool     // fails: no upstream answered in this round; failed: none did in the previous one
	allowed       bool     // a path that forbade leases allows them now
	withdrawn     []target // targets whose leases must be withdrawn
	reason        string   // why these leases must be withdrawn
}

// conclude allows or withdraws leases by the results of a round; found has them by cluster DNS address. err is why the agent's own queries
// were not answered; nil if one was, or a client's.
func (n *Node) conclude(found map[netip.Addr]lease.Round, err error) {
	why := ""
	if err != nil {
		why = "the agent cannot query for " + n.plan().ClusterDomain + " from this node: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	n.leaseLock.Lock()
	c := n.updatePaths(found, why, time.Now())
	for _, t := range c.withdrawn {
		n.withdrawLease(t)
	}
	n.leaseLock.Unlock()
	n.Recorder.CanQuery(err == nil)
	switch {
	case c.fails && !c.failed:
		n.Log.Error("no upstream answers the agent's queries for the cluster's names", "err", err)
	case !c.fails && c.failed:
		n.Log.Info("upstreams answer queries for the cluster's names now")
	}
	for _, t := range c.withdrawn {
		n.Recorder.Lease(t.Address, t.Protocol, false)
		n.Recorder.LeaseLost(lostUpstream)
		n.Log.Warn("lease withdrawn; kube-dns answers, except kernel hits", "addr", t.Address, "protocol", t.Protocol, "reason", c.reason)
	}
	if c.allowed {
		n.probeNow() // each target is probed at once
	}
}

// updatePaths updates the state of each path by the results of a round. It marks as not held the leases that conclude must withdraw, and
// lists them.
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
				c.reason = n.withheld(t)
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

// lostUpstream is the metric's reason for a lease that is withdrawn because upstreams do not answer, although no probe failed.
const lostUpstream = "upstream"

// faultAsking is the key in a node's faults for upstreams that do not answer the agent's own queries.
const faultAsking = "asking"
