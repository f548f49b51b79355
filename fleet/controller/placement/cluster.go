// Package placement decides which nodes run the cache, and which nodes change next; it also decides what to write to place kube-dns. It is
// pure: its input is the state of the cluster, its output is the changes to make and the conditions to report;
// fleet/controller/internal/reconcile reads the input and carries out the output. It is not an internal package because
// integration/controlplane, a separate module, compares Eligible with the real DaemonSet controller.
//
// A node that is not to run the cache gets the label neardns.io/cache: excluded, and the DaemonSet in install/base avoids nodes with
// it. The controller never edits the DaemonSet, so the cache pods of all other nodes keep running (fleet/docs/decisions/D-056.md).
//
// It guarantees that a step excludes nodes only while at least one eligible node has a Ready cache and kube-dns has a ready endpoint,
// and that at most a tenth of the nodes (but at least one) lose the cache at a time.
//
// If a placement is invalid or selects no node, the last accepted placement stays in effect; if there is none, every node runs the
// cache.
package placement

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// The label that the controller writes.
const (
	// Label is the key of the node label; Excluded is its value on nodes that are not to run the cache.
	Label    = "neardns.io/cache"
	Excluded = "excluded"
)

// Cluster is the input of a decision.
type Cluster struct {
	Nodes     []Node
	Upstreams int // ready endpoints of kube-dns
}

// Node has those properties of a node that matter for a decision.
type Node struct {
	Name   string
	Labels map[string]string
	Taints []corev1.Taint
	Ready  bool // the node itself is Ready
	Cache  Cache
	DNS    bool // a ready kube-dns pod runs on the node
}

// Cache is the state of the cache pod on a node.
type Cache int

// The states of the cache pod, from worst to best.
const (
	NoCache      Cache = iota // the node has no cache pod
	UnreadyCache              // the node has a cache pod, but none that is Ready and not being deleted
	ReadyCache                // a cache pod is Ready and is not being deleted
)

func (n *Node) excluded() bool { return n.Labels[Label] == Excluded }

// serves reports whether the node's pods can rely on the cache of the node.
func (n *Node) serves() bool { return n.Ready && n.Cache == ReadyCache && !n.excluded() }

// Read converts API objects (nodes, cache pods, EndpointSlices of kube-dns) to the input of Decide. The result shares the nodes' maps
// and slices.
func Read(nodes []*corev1.Node, pods []*corev1.Pod, slice []*discoveryv1.EndpointSlice) Cluster {
	caches := make(map[string]Cache, len(nodes))
	for _, p := range pods {
		if p.Spec.NodeName == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		state := UnreadyCache
		if p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			state = ReadyCache
		}
		caches[p.Spec.NodeName] = max(caches[p.Spec.NodeName], state) // a node has two cache pods during a handover
	}
	c := Cluster{Nodes: make([]Node, 0, len(nodes))}
	upstream := map[string]bool{}
	for _, s := range slice {
		for _, e := range s.Endpoints {
			if len(e.Addresses) == 0 || e.Conditions.Ready != nil && !*e.Conditions.Ready { // by the API, nil means ready
				continue
			}
			c.Upstreams++
			if e.NodeName != nil {
				upstream[*e.NodeName] = true
			}
		}
	}
	for _, n := range nodes {
		c.Nodes = append(c.Nodes, Node{
			Name: n.Name, Labels: n.Labels, Taints: n.Spec.Taints, Cache: caches[n.Name], DNS: upstream[n.Name],
			Ready: slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			}),
		})
	}
	// Sorted by name, so that a new leader continues with the same nodes.
	slices.SortFunc(c.Nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return c
}
