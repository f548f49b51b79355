package node

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/neardns/neardns/agent/internal/node/evidence"
	"github.com/neardns/neardns/agent/internal/overview"
	"github.com/neardns/neardns/internal/dns/forward"
	"github.com/neardns/neardns/internal/offload"
	"github.com/neardns/neardns/pkg/steer"
)

// Status is the agent's state, for `neardns-agent status` and the readiness endpoint.
type Status struct {
	Process
	Instance string    `json:"instance"`
	PID      int       `json:"pid,omitempty"`     // package lifecycle sets it
	Version  string    `json:"version,omitempty"` // package lifecycle sets it
	Started  time.Time `json:"started"`
	Serving  bool      `json:"serving"`
	// Ready means that the server runs, there are targets, each has its lease, and upstreams answer the agent. With arrangement:
	// transparent, it means that the newest plan is served, and that kernel hits work, are optional or are off.
	Ready     bool              `json:"ready"`
	CannotAsk string            `json:"cannotAsk,omitempty"` // why upstreams do not answer the agent's own queries
	Redirects []steer.Redirect  `json:"redirects"`
	Leases    []LeaseStatus     `json:"leases"`
	Proven    []netip.Addr      `json:"fallbackProven"`
	Faults    map[string]string `json:"faults"`
	LastFault *Fault            `json:"lastFault,omitempty"`
	Repair    string            `json:"lastRepair,omitempty"`
	Repairs   map[string]int    `json:"repairs"` // part (link, rules, firewall, prober) to number of repairs since the start
	Upstreams []forward.Status  `json:"upstreams,omitempty"`
	External  string            `json:"external,omitempty"` // the upstreams for names outside of the cluster, and how they were chosen
	Cache     *CacheStatus      `json:"cache,omitempty"`    // package lifecycle sets it
	// Bypassed are the clients that kube-dns answers because their queries do not reach the agent.
	Bypassed []evidence.Bypassed `json:"bypassed,omitempty"`
	Handover *Handover           `json:"handover,omitempty"` // how this agent took the node over from a running one; nil if it did not
}

// Process is a part of the state that package lifecycle sets.
type Process struct {
	// Arranged is "transparent" if only the kernel program answers pods from the cache (arrangement: transparent); else "".
	Arranged string `json:"arrangement,omitempty"`
	// SteerMode is the value of steer.mode; "" if it is "all".
	SteerMode string `json:"steerMode,omitempty"`
	// Unknown are the configuration keys that this release does not know, each with its position and perhaps the key that was meant.
	Unknown []string `json:"unknown,omitempty"`
	// Without describes the features that this agent lacks on this node, and why.
	Without []string `json:"without,omitempty"`
	// KernelHits is the state of kernel hits; nil if they are off.
	KernelHits *offload.State `json:"kernelHits,omitempty"`
}

// Fault is a present or past fault.
type Fault = overview.Fault

// CacheStatus is the cache's memory use, with its hits and misses since the process started.
type CacheStatus struct {
	Bytes  int64 `json:"bytes"`
	Limit  int64 `json:"limitBytes"`
	Hits   int64 `json:"hits"`
	Misses int64 `json:"misses"`
}

// LeaseStatus is the lease of one address and protocol.
type LeaseStatus = overview.Lease

// Status returns the current state. It may be called at any time.
func (n *Node) Status() Status {
	var bypassed []evidence.Bypassed
	if n.Evidence != nil {
		bypassed = n.Evidence.Bypassed() // n.mu must not be held here: Evidence locks it (in LeaseOf) while it holds its own lock
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s := Status{Instance: n.instance, Started: n.started, Serving: n.serving, Redirects: n.now.Redirects,
		Proven: slices.SortedFunc(maps.Keys(n.verified), netip.Addr.Compare), Faults: maps.Clone(n.faults), Repair: n.repair,
		Repairs: maps.Clone(n.repairs), LastFault: n.fault, Handover: n.inherited, External: n.now.External}
	faults := slices.Clone(n.now.Warnings)
	s.Bypassed = bypassed
	if n.Upstreams != nil {
		s.Upstreams = n.Upstreams.Status()
		faults = append(faults, n.Upstreams.Faults()...)
	}
	if len(faults) > 0 {
		s.Faults["upstreams"] = strings.Join(faults, "; ")
	}
	s.CannotAsk = n.cannotQuery()
	s.Ready = s.CannotAsk == "" && n.serving && len(n.targets) > 0
	for t, l := range n.targets {
		// Check the time of the last renewal too: in a process that was stopped (SIGSTOP, a paused machine), l.held is still set although
		// the kernel has let the lease expire.
		held := l.held && time.Since(l.lastOK) <= n.now.Terms.Lifetime
		s.Ready = s.Ready && held
		s.Leases = append(s.Leases, LeaseStatus{Address: t.Address, Protocol: t.Protocol.String(), Held: held, Since: l.since, Reason: l.reason})
	}
	slices.SortFunc(s.Leases, func(a, b LeaseStatus) int {
		return cmp.Or(a.Address.Compare(b.Address), strings.Compare(a.Protocol, b.Protocol))
	})
	return s
}

// Ready returns the status's Ready, and if it is false, the reason.
func (n *Node) Ready() (bool, string) {
	s := n.Status()
	if s.Ready {
		return true, ""
	}
	if !s.Serving {
		if why := s.Faults["server"] + s.Faults["link"]; why != "" {
			return false, "not serving: " + why
		}
		return false, "not serving yet"
	}
	for _, l := range s.Leases {
		if !l.Held {
			return false, "no lease for " + l.Address.String() + " over " + l.Protocol + ": " + l.Reason
		}
	}
	if s.CannotAsk != "" {
		return false, s.CannotAsk
	}
	return false, "no lease yet"
}
