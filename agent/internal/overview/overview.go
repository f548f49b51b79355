// Package overview defines the JSON in which a running agent reports its node's state to kubectl-neardns.
//
// It imports no package of the agent, because kubectl-neardns also runs on other systems than Linux. Readers ignore unknown fields. A
// field never changes its meaning; an incompatible change gets another Path.
package overview

import (
	"net/netip"
	"time"
)

// Path is the path of the agent's metrics endpoint at which it serves a Node as JSON. Every pod can read it (D-045). It never has names
// that pods query, and names pods only with `listen.namespaces: true`.
const Path = "/v1/status"

// MaxPods is the maximum number of entries in Node.Pods: as many pods as a kubelet runs by default.
const MaxPods = 110

// Node is the state of one node, with counts since the agent started.
type Node struct {
	Version  string    `json:"version"`
	Instance string    `json:"instance"` // a different instance has counted from zero
	Started  time.Time `json:"started"`
	Time     time.Time `json:"time"` // by the node's clock
	// Serving means that the agent is ready (it has its leases, if it needs any) and has no fault.
	Serving bool `json:"serving"`
	// Arranged is "transparent" with arrangement: transparent, and "" otherwise. With transparent there are no leases and no steered pods.
	Arranged  string            `json:"arrangement,omitempty"`
	Leases    []Lease           `json:"leases"`
	Steering  []netip.Addr      `json:"steering,omitempty"`  // addresses that pods' queries are rewritten to
	Faults    map[string]string `json:"faults,omitempty"`    // current faults, by part of the agent
	LastFault *Fault            `json:"lastFault,omitempty"` // the last fault, which may be over
	Counts    Counts            `json:"counts"`
	States    map[string]int    `json:"podStates"` // pod interfaces by state: steered, pending, given-back (bypassed), left-alone …
	// Pods has the pods with the most queries; empty without `listen.namespaces: true`.
	Pods []Pod `json:"pods,omitempty"`
}

// Lease is the lease of one address and protocol.
type Lease struct {
	Address  netip.Addr `json:"address"`
	Protocol string     `json:"protocol"`
	Held     bool       `json:"held"`
	Since    time.Time  `json:"since"`            // when the lease was granted or lost, or when the target was added
	Reason   string     `json:"reason,omitempty"` // why the lease is not held; "" while it is, or if it expired unnoticed
}

// Fault is a fault of the node, which may be over.
type Fault struct {
	Time time.Time `json:"time"`
	Part string    `json:"part"`
	What string    `json:"what"`
}

// Counts has the queries that the agent or the kernel program answered, without those that pods sent to kube-dns itself.
type Counts struct {
	Queries uint64 `json:"queries"`
	Hits    uint64 `json:"hits"`   // number of Queries answered from the cache, by the agent or the kernel program
	Kernel  uint64 `json:"kernel"` // number of Queries answered by the kernel program
	// NXDomain and Failures are the numbers of Queries whose response code is NXDOMAIN, and neither NOERROR nor NXDOMAIN. They are set only
	// for pods and namespaces.
	NXDomain uint64 `json:"nxdomain,omitempty"`
	Failures uint64 `json:"failures,omitempty"`
}

// Since returns the difference to an earlier reading of the same counters.
func (c Counts) Since(before Counts) Counts {
	return Counts{c.Queries - min(before.Queries, c.Queries), c.Hits - min(before.Hits, c.Hits), c.Kernel - min(before.Kernel, c.Kernel),
		c.NXDomain - min(before.NXDomain, c.NXDomain), c.Failures - min(before.Failures, c.Failures)}
}

// Add returns the sum of two counts.
func (c Counts) Add(d Counts) Counts {
	return Counts{c.Queries + d.Queries, c.Hits + d.Hits, c.Kernel + d.Kernel, c.NXDomain + d.NXDomain, c.Failures + d.Failures}
}

// Pod has the query counts of one pod, since the start of the agent or of the pod, whichever is later.
type Pod struct {
	Pod    string `json:"pod"` // namespace/name, or a short container ID if the name is unknown
	State  string `json:"state,omitempty"`
	Counts Counts `json:"counts"`
}
