package node

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/pkg/tick"
)

// Rhythm of the fallback's proof. Until it stands it is sought often, since new pods wait for it; afterwards it is only
// watched. Three failures in a row take it back: kube-dns may be restarting for a moment.
const (
	proveSoon    = 2 * time.Second
	proveLater   = 30 * time.Second
	proveTimeout = 2 * time.Second
	proveLimit   = 3
	// A fallback that fails for lostAfter is looked at, every proveLater: is it kube-dns that is away, or the way?
	lostAfter = 3 * time.Minute
)

// readProofs starts from what was proven before, by the same back end, over the same translation, and in this boot.
func (n *Node) readProofs() {
	proven, err := n.Proofs.Read()
	if err != nil {
		n.Log.Warn("earlier proof of the fallback not read, it is sought anew", "err", err)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range proven {
		n.proven[a] = true
	}
}

func (n *Node) isProven(clusterDNS netip.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	// A proof from before a reboot says nothing while the switch is not there to fall back.
	return n.now.Steers && n.proven[clusterDNS] && n.ruled && n.faults["rules"] == ""
}

// prove asks kube-dns by the way that steered packets take when they are given back, and keeps the record of it.
func (n *Node) prove(ctx context.Context) {
	failures := map[netip.Addr]int{}
	failing := map[netip.Addr]time.Time{} // since when
	looked := map[netip.Addr]time.Time{}
	due := map[netip.Addr]time.Time{}
	kept := false // the record on disk was looked at
	for {
		s := n.plan()
		for addr := range failures {
			if !s.Steers || !slices.ContainsFunc(s.Fallbacks(), func(f plan.Fallback) bool { return f.ClusterDNS == addr }) {
				delete(failures, addr)
				delete(failing, addr)
				delete(due, addr)
				n.unwatched(addr)
			}
		}
		for _, r := range s.Fallbacks() {
			if !s.Steers || !n.switchStands() || time.Now().Before(due[r.ClusterDNS]) {
				continue
			}
			askCtx, cancel := context.WithTimeout(ctx, proveTimeout)
			err := n.Prober.Prove(askCtx, r.Asked, "kubernetes.default.svc."+s.ClusterDomain+".")
			cancel()
			if ctx.Err() != nil {
				return
			}
			if err == nil && !n.switchStands() {
				err = errNoSwitch
			}
			now := time.Now()
			if err == nil {
				failures[r.ClusterDNS] = 0
				delete(failing, r.ClusterDNS)
				due[r.ClusterDNS] = now.Add(proveLater)
			} else {
				if failures[r.ClusterDNS]++; failures[r.ClusterDNS] == 1 {
					failing[r.ClusterDNS] = now
				}
				due[r.ClusterDNS] = now.Add(proveSoon)
				if now.Sub(failing[r.ClusterDNS]) >= lostAfter && now.Sub(looked[r.ClusterDNS]) >= proveLater && n.World != nil {
					looked[r.ClusterDNS] = now
					askCtx, cancel := context.WithTimeout(ctx, proveTimeout)
					n.found(r.ClusterDNS, n.World.Lost(askCtx, r.ClusterDNS, "kubernetes.default.svc."+s.ClusterDomain+"."))
					cancel()
				}
			}
			n.proved(r.ClusterDNS, err, failures[r.ClusterDNS] >= proveLimit)
			kept = false
		}
		if !kept && n.switchStands() {
			n.keepProofs(s)
			kept = s.Steers // what must not stand is looked for again and again
		}
		if !tick.Grid(ctx, n.onGrid(proveSoon/20)) {
			return
		}
	}
}

// found notes that a fallback is lost for good, and why; "" where that cannot be said. Pods are given back then, until its proof.
func (n *Node) found(clusterDNS netip.Addr, lost string) {
	n.mu.Lock()
	before := n.lost[clusterDNS]
	if lost != "" {
		n.lost[clusterDNS] = lost
	}
	n.mu.Unlock()
	if lost != "" && before == "" {
		n.Log.Error("fallback is lost, steered pods are given back", "addr", clusterDNS, "reason", lost)
		n.kick.Send()
	}
}

// errNoSwitch voids an answer: without the switch the agent itself would have given it.
var errNoSwitch = errors.New("the host table is not as it should be, so the answer proves nothing")

func (n *Node) switchStands() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ruled && n.faults["rules"] == ""
}

func (n *Node) proved(addr netip.Addr, err error, final bool) {
	n.mu.Lock()
	before := n.proven[addr]
	switch {
	case err == nil:
		n.proven[addr] = true
		delete(n.lost, addr)
	case final:
		delete(n.proven, addr)
	}
	after := n.proven[addr]
	steers := slices.ContainsFunc(n.now.Redirects, func(r redirect) bool { return r.ClusterDNS == addr })
	if err != nil {
		n.faults["fallback "+addr.String()] = err.Error()
	} else {
		delete(n.faults, "fallback "+addr.String())
	}
	n.mu.Unlock()
	n.Recorder.Proven(addr, after)
	switch {
	case after && !before && !steers:
		n.Log.Info("fallback proven", "addr", addr)
	case before && !after && !steers:
		n.Log.Error("fallback fails: what the agent does not answer is lost", "addr", addr, "err", err)
	case after && !before:
		n.Log.Info("fallback proven, pods may be steered", "addr", addr)
		n.kick.Send()
	case before && !after:
		n.Log.Error("fallback fails, new pods are left alone", "addr", addr, "err", err)
	}
}

// unwatched forgets what was wrong with a fallback that is not wanted any more. Nobody would ever find it well.
func (n *Node) unwatched(addr netip.Addr) {
	n.mu.Lock()
	delete(n.faults, "fallback "+addr.String())
	n.mu.Unlock()
	n.Recorder.FallbackGone(addr)
}

// keepProofs writes the record when it differs from what is known, limited to what is configured.
func (n *Node) keepProofs(s plan.Plan) {
	n.mu.Lock()
	var want []netip.Addr
	for _, a := range slices.SortedFunc(maps.Keys(n.proven), netip.Addr.Compare) {
		if s.Steers && slices.ContainsFunc(s.Fallbacks(), func(f plan.Fallback) bool { return f.ClusterDNS == a }) {
			want = append(want, a)
		}
	}
	n.mu.Unlock()
	have, err := n.Proofs.Read()
	slices.SortFunc(have, netip.Addr.Compare)
	if err == nil && slices.Equal(have, want) {
		return
	}
	n.note("proof", n.Proofs.Write(want))
}
