// Package placement decides which nodes run the cache, and which nodes change next. It is pure: its input is what was read from the
// cluster, its output is labels to change and conditions to report. fleet/controller/internal/reconcile reads and writes. It is not
// internal because integration/controlplane, a separate module, compares Eligible with the real DaemonSet controller.
//
// A node outside the placement gets the label neardns.io/cache: excluded, and the DaemonSet in install/base avoids such nodes. So a node
// that keeps its cache keeps its pod, and the DaemonSet is never edited (docs/decisions/D-055.md).
//
// It guarantees that a step excludes nodes only while an eligible node has a Ready cache and kube-dns has a ready endpoint, and at most a
// tenth of the nodes at a time.
//
// If a placement is invalid or selects no node, the last accepted placement stays in effect; without one, every node runs the cache.
package placement

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// The label that the controller writes.
const (
	// Label is the key of the label on nodes; Excluded is its value on those that run no cache.
	Label    = "neardns.io/cache"
	Excluded = "excluded"
)

// Cluster is the input of a decision.
type Cluster struct {
	Nodes     []Node
	Upstreams int // ready endpoints of kube-dns
}

// Node has the properties of a node that affect a decision.
type Node struct {
	Name   string
	Labels map[string]string
	Taints []corev1.Taint
	Ready  bool // of the node itself
	Cache  Cache
}

// Cache is the state of the cache on a node.
type Cache int

// The states of a cache, from worst to best.
const (
	NoCache      Cache = iota // the node has no pod of the cache
	UnreadyCache              // there is a pod, but it is not Ready or is being deleted
	ReadyCache                // a pod is Ready and is not being deleted
)

func (n *Node) excluded() bool { return n.Labels[Label] == Excluded }

// serves reports whether pods of the node can rely on its cache.
func (n *Node) serves() bool { return n.Ready && n.Cache == ReadyCache && !n.excluded() }

// Read extracts the input of a decision from API objects: the cluster's nodes, the cache's pods, kube-dns's EndpointSlices. The result
// shares the nodes' labels and taints.
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
		caches[p.Spec.NodeName] = max(caches[p.Spec.NodeName], state) // during a handover there are two
	}
	c := Cluster{Nodes: make([]Node, 0, len(nodes))}
	for _, n := range nodes {
		c.Nodes = append(c.Nodes, Node{
			Name: n.Name, Labels: n.Labels, Taints: n.Spec.Taints, Cache: caches[n.Name],
			Ready: slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			}),
		})
	}
	// Steps follow the order of names, so that a controller that takes over continues with the same nodes.
	slices.SortFunc(c.Nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	for _, s := range slice {
		for _, e := range s.Endpoints {
			if len(e.Addresses) > 0 && (e.Conditions.Ready == nil || *e.Conditions.Ready) { // unset means ready, as the field is documented
				c.Upstreams++
			}
		}
	}
	return c
}
