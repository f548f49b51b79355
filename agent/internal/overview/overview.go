// Package overview describes what a running agent reports of its node to kubectl-neardns.
//
// It imports nothing of the agent, because kubectl-neardns also runs where the agent cannot. A reader ignores fields that it does not know;
// a field never changes its meaning, and a change that needs one gets another Path.
package overview

import (
	"net/netip"
	"time"
)

// Path is where the agent serves a Node as JSON, at its metrics listener. Every pod can read it (D-045): it has no names that pods query,
// and names pods only with `listen.namespaces: true`.
const Path = "/v1/status"

// MaxPods bounds the pods of a Node: as many as a kubelet runs by default.
const MaxPods = 110

// Node is one node's state, and its counts since the agent started.
type Node struct {
	Version  string    `json:"version"`
	Instance string    `json:"instance"` // another one counts from zero
	Started  time.Time `json:"started"`
	Time     time.Time `json:"time"` // by the node's clock
	// Serving: the agent has its leases and no fault.
	Serving bool `json:"serving"`
	// Arranged is set on a node that has only kernel hits: it has no leases and no steered pods.
	Arranged  string            `json:"arrangement,omitempty"`
	Leases    []Lease           `json:"leases"`
	Steering  []netip.Addr      `json:"steering,omitempty"`  // addresses that pods' queries are rewritten to
	Faults    map[string]string `json:"faults,omitempty"`    // present ones, by part
	LastFault *Fault            `json:"lastFault,omitempty"` // also a past one
	Counts    Counts            `json:"counts"`
	States    map[string]int    `json:"podStates"` // attachments of pods by state: steered, pending, given-back (bypassed), left-alone …
	// Pods are those with the most queries; empty without `listen.namespaces: true`.
	Pods []Pod `json:"pods,omitempty"`
}

// Lease is the lease of one address and protocol.
type Lease struct {
	Address  string    `json:"address"`
	Protocol string    `json:"protocol"`
	Held     bool      `json:"held"`
	Since    time.Time `json:"since"`
	Reason   string    `json:"reason,omitempty"` // why it is not held
}

// Fault is a present or past fault.
type Fault struct {
	Time time.Time `json:"time"`
	Part string    `json:"part"`
	What string    `json:"what"`
}

// Counts are queries that the agent or the kernel program answered. Those that kube-dns answered are not in it.
type Counts struct {
	Queries uint64 `json:"queries"`
	Hits    uint64 `json:"hits"`   // of these, from the cache
	Kernel  uint64 `json:"kernel"` // of these, by the kernel program, which counts for each pod; the agent adds what is new at each read
	// Failures are those of these with a response code other than NOERROR and NXDOMAIN. They are counted for pods alone.
	Failures uint64 `json:"failures,omitempty"`
}

// Since is what was counted after an earlier reading of the same counters.
func (c Counts) Since(before Counts) Counts {
	return Counts{c.Queries - min(before.Queries, c.Queries), c.Hits - min(before.Hits, c.Hits), c.Kernel - min(before.Kernel, c.Kernel),
		c.Failures - min(before.Failures, c.Failures)}
}

// Add sums two counts up.
func (c Counts) Add(d Counts) Counts {
	return Counts{c.Queries + d.Queries, c.Hits + d.Hits, c.Kernel + d.Kernel, c.Failures + d.Failures}
}

// Pod has the queries of one pod, since the agent or the pod started, whichever is later.
type Pod struct {
	Pod    string `json:"pod"` // namespace/name
	State  string `json:"state,omitempty"`
	Counts Counts `json:"counts"`
}
