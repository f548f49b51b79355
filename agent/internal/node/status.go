package node

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/neardns/neardns/agent/internal/node/evidence"
	"github.com/neardns/neardns/internal/dns/forward"
	"github.com/neardns/neardns/internal/offload/podlinks"
	"github.com/neardns/neardns/pkg/steer"
)

type redirect = steer.Redirect

// Status is what the agent says of itself, for `neardns-agent status` and the readiness endpoint.
type Status struct {
	Instance string `json:"instance"`
	PID      int    `json:"pid,omitempty"`     // of the process, and
	Version  string `json:"version,omitempty"` // of the program: filled in by who runs the node
	// Arranged is how questions come to the agent, where there is no more to say of it than the kernel's hits; else "".
	Arranged string `json:"arrangement,omitempty"`

	Started   time.Time         `json:"started"`
	Serving   bool              `json:"serving"`
	Ready     bool              `json:"ready"`               // every address and protocol holds its lease, and what pods need asked can be asked
	CannotAsk string            `json:"cannotAsk,omitempty"` // why it cannot
	Redirects []steer.Redirect  `json:"redirects"`
	Leases    []LeaseStatus     `json:"leases"`
	Proven    []netip.Addr      `json:"fallbackProven"`
	Faults    map[string]string `json:"faults"`
	LastFault *Fault            `json:"lastFault,omitempty"`
	Repair    string            `json:"lastRepair,omitempty"`
	Repairs   map[string]int    `json:"repairs"` // since the start, by kind
	Upstreams []forward.Status  `json:"upstreams,omitempty"`
	External  string            `json:"external,omitempty"` // who answers for names outside of the cluster, and why
	Cache     *CacheStatus      `json:"cache,omitempty"`    // filled in by who runs the node
	// Bypassed are the clients that kube-dns answers since their questions do not reach the agent.
	Bypassed []evidence.Bypassed `json:"bypassed,omitempty"`
	// Unknown are keys of the configuration that this release does not know, with their places: filled in by who runs the node.
	Unknown []string `json:"unknown,omitempty"`
	// Without is what this agent cannot do where it runs, in words: filled in by who runs the node.
	Without []string `json:"without,omitempty"`
	// KernelHits tell of the hits that are answered in the kernel; nil where none are to be: filled in by who runs the node.
	KernelHits *KernelHits `json:"kernelHits,omitempty"`

	Handover *Handover `json:"handover,omitempty"` // how the node came from another agent; nil if it was free
}

// Fault is something that went wrong, whether or not it was put right since.
type Fault struct {
	Time time.Time `json:"time"`
	Part string    `json:"part"`
	What string    `json:"what"`
}

// CacheStatus is what the cache takes and gives, since the process began.
type CacheStatus struct {
	Bytes  int64 `json:"bytes"`
	Limit  int64 `json:"limitBytes"`
	Hits   int64 `json:"hits"`
	Misses int64 `json:"misses"`
}

// KernelHits are the hits that are answered in the kernel.
type KernelHits struct {
	Pods int `json:"pods"` // attachments that it answers
	Lent int `json:"lent"` // answers that it has
	// Served are the addresses at which it answers, where they are not the agent's own.
	Served []netip.AddrPort `json:"served,omitempty"`
	// Fetched are questions that it let pass and that the agent asked for itself, Dropped those that had no place.
	Fetched uint64             `json:"fetched,omitempty"`
	Dropped uint64             `json:"dropped,omitempty"`
	Answers uint64             `json:"answers"`           // that it gave, since the program came to the node
	Refused []podlinks.Refused `json:"refused,omitempty"` // pods that it does not answer although that is wanted
	Fault   string             `json:"fault,omitempty"`   // why it answers none
}

// LeaseStatus is one address and protocol.
type LeaseStatus struct {
	Address  netip.Addr `json:"address"`
	Protocol string     `json:"protocol"`
	Held     bool       `json:"held"`
	Since    time.Time  `json:"since"`
	Reason   string     `json:"reason,omitempty"`
}

// Status returns the present state. It may be called at any time.
func (n *Node) Status() Status {
	var bypassed []evidence.Bypassed
	if n.Evidence != nil {
		bypassed = n.Evidence.Bypassed() // it asks us back, so not under our lock
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s := Status{Instance: n.instance, Started: n.started, Serving: n.serving, Redirects: n.now.Redirects,
		Proven: slices.SortedFunc(maps.Keys(n.proven), netip.Addr.Compare), Faults: maps.Clone(n.faults), Repair: n.repair,
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
	var can bool
	can, s.CannotAsk = n.canAsk()
	s.Ready = can && n.serving && len(n.targets) > 0
	for t, l := range n.targets {
		// A process that was stopped has not noticed yet that its lease lapsed.
		held := l.held && time.Since(l.lastOK) <= n.now.Terms.Lifetime
		s.Ready = s.Ready && held
		s.Leases = append(s.Leases, LeaseStatus{Address: t.Address, Protocol: t.Protocol.String(), Held: held, Since: l.since, Reason: l.reason})
	}
	slices.SortFunc(s.Leases, func(a, b LeaseStatus) int {
		if c := a.Address.Compare(b.Address); c != 0 {
			return c
		}
		return strings.Compare(a.Protocol, b.Protocol)
	})
	return s
}

// Ready says whether pods are served under a lease on every address, and if not, why.
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
