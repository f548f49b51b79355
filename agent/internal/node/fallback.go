package node

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/tick"
)

// Intervals of the fallback check. After a failure it runs again in 2 s, because new pods wait for a verified fallback, and after a success
// in 30 s. A verified fallback counts as failed only after three failures in a row, because kube-dns may be restarting.
const (
	checkSoon     = 2 * time.Second
	checkLater    = 30 * time.Second
	checkTimeout  = 2 * time.Second
	checkFailures = 3
	// If a fallback has failed for lostAfter, the agent calls FallbackLost every checkLater, to learn whether the fallback is lost for good or
	// kube-dns may only be down.
	lostAfter = 3 * time.Minute
)

// readVerified reads from disk the fallbacks that an earlier agent verified in this boot, with the same back end.
func (n *Node) readVerified() {
	proven, err := n.Verified.Read()
	if err != nil {
		n.Log.Warn("cannot read the record of verified fallbacks; no further pod is steered until its fallback is verified again", "err", err)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range proven {
		n.verified[a] = true
	}
}

// checkFallbacks checks each fallback at intervals until ctx ends: it queries kube-dns on the path that a steered pod's packet takes if
// the agent does not answer. It keeps the record of verified fallbacks on disk up to date.
func (n *Node) checkFallbacks(ctx context.Context) {
	kept := false // the record on disk is up to date
	// The following maps have cluster DNS addresses as keys.
	failures := map[netip.Addr]int{}      // failed checks since the last success
	failing := map[netip.Addr]time.Time{} // since when the checks have failed
	looked := map[netip.Addr]time.Time{}  // when FallbackLost was last called
	due := map[netip.Addr]time.Time{}     // when to check next
	for {
		s := n.plan()
		for addr := range failures {
			if !s.Steers || !slices.ContainsFunc(s.Fallbacks(), func(f plan.Fallback) bool { return f.ClusterDNS == addr }) {
				delete(failures, addr)
				delete(failing, addr)
				delete(due, addr)
				n.forgetFallback(addr)
				kept = false
			}
		}
		for _, r := range s.Fallbacks() {
			if !s.Steers || !n.rulesInPlace() || time.Now().Before(due[r.ClusterDNS]) {
				continue
			}
			askCtx, cancel := context.WithTimeout(ctx, checkTimeout)
			err := n.Prober.CheckFallback(askCtx, r.Queried, "kubernetes.default.svc."+s.ClusterDomain+".")
			cancel()
			if ctx.Err() != nil {
				return
			}
			if err == nil && !n.rulesInPlace() {
				err = errNoSwitch
			}
			now := time.Now()
			if err == nil {
				failures[r.ClusterDNS] = 0
				delete(failing, r.ClusterDNS)
				due[r.ClusterDNS] = now.Add(checkLater)
			} else {
				if failures[r.ClusterDNS]++; failures[r.ClusterDNS] == 1 {
					failing[r.ClusterDNS] = now
				}
				due[r.ClusterDNS] = now.Add(checkSoon)
				// If the agent may answer the host's own queries, an answer does not show that kube-dns works.
				if now.Sub(failing[r.ClusterDNS]) >= lostAfter && now.Sub(looked[r.ClusterDNS]) >= checkLater && !s.InterceptsNode() {
					looked[r.ClusterDNS] = now
					askCtx, cancel := context.WithTimeout(ctx, checkTimeout)
					n.noteLost(r.ClusterDNS, n.FallbackLost(askCtx, r.ClusterDNS, "kubernetes.default.svc."+s.ClusterDomain+"."))
					cancel()
				}
			}
			n.noteChecked(r.ClusterDNS, err, failures[r.ClusterDNS] >= checkFailures)
			kept = false
		}
		if !kept && n.rulesInPlace() {
			kept = n.writeVerified(s)
		}
		if !tick.Grid(ctx, n.roundToProbes(checkSoon/20)) {
			return
		}
	}
}

// noteLost records the reason why a fallback is lost for good, and has its steered pods bypassed until it is verified again. With an
// empty reason it does nothing.
func (n *Node) noteLost(clusterDNS netip.Addr, lost string) {
	n.mu.Lock()
	before := n.lost[clusterDNS]
	if lost != "" {
		n.lost[clusterDNS] = lost
	}
	n.mu.Unlock()
	if lost != "" && before == "" {
		n.Log.Error("kube-dns answers the node's own queries, but not those that fall back; steered pods are bypassed", "cluster_dns", clusterDNS,
			"reason", lost)
		n.kick.Send()
	}
}

// errNoSwitch replaces the success of a fallback check that ran while the host's rules were missing, because the agent itself may have
// answered.
var errNoSwitch = errors.New("the host's rules are not in place, so the answer does not verify the fallback")

func (n *Node) rulesInPlace() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rulesMade && n.faults["rules"] == ""
}

func (n *Node) noteChecked(addr netip.Addr, err error, final bool) {
	n.mu.Lock()
	before := n.verified[addr]
	switch {
	case err == nil:
		n.verified[addr] = true
		delete(n.lost, addr)
	case final:
		delete(n.verified, addr)
	}
	after := n.verified[addr]
	steers := slices.ContainsFunc(n.now.Redirects, func(r steer.Redirect) bool { return r.ClusterDNS == addr })
	if err != nil {
		n.faults["fallback "+addr.String()] = err.Error()
	} else {
		delete(n.faults, "fallback "+addr.String())
	}
	n.mu.Unlock()
	n.Recorder.FallbackVerified(addr, after)
	switch {
	case after && !before && !steers:
		n.Log.Info("fallback verified: kube-dns answers if the agent does not", "cluster_dns", addr)
	case before && !after && !steers:
		n.Log.Error("the fallback to kube-dns fails; queries that the agent does not answer are lost", "cluster_dns", addr, "err", err)
	case after && !before:
		n.Log.Info("fallback verified: kube-dns answers if the agent does not; pods may be steered", "cluster_dns", addr)
		n.kick.Send()
	case before && !after:
		n.Log.Error("the fallback to kube-dns fails; new pods are not steered", "cluster_dns", addr, "err", err)
	}
}

// forgetFallback removes the results of a fallback that is no longer checked, because no later check would clear them.
func (n *Node) forgetFallback(addr netip.Addr) {
	n.mu.Lock()
	delete(n.verified, addr)
	delete(n.lost, addr)
	delete(n.faults, "fallback "+addr.String())
	n.mu.Unlock()
	n.Recorder.FallbackGone(addr)
}

// writeVerified writes those verified fallbacks that the plan has to the record on disk, or none if no pod may be steered. It writes only
// if the record differs or cannot be read, and reports whether the record is as wanted.
func (n *Node) writeVerified(s plan.Plan) bool {
	n.mu.Lock()
	var want []netip.Addr
	for _, a := range slices.SortedFunc(maps.Keys(n.verified), netip.Addr.Compare) {
		if s.Steers && slices.ContainsFunc(s.Fallbacks(), func(f plan.Fallback) bool { return f.ClusterDNS == a }) {
			want = append(want, a)
		}
	}
	n.mu.Unlock()
	have, err := n.Verified.Read()
	slices.SortFunc(have, netip.Addr.Compare)
	if err != nil || !slices.Equal(have, want) {
		err = n.Verified.Write(want)
	}
	return n.noteFault("proof", err)
}
