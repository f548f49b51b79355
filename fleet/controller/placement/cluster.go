// Package placement decides which nodes run the cache and what the next step towards that is. It is pure: what was read of the cluster goes
// in, labels to change and conditions to report come out (fleet/controller/internal/reconcile reads and writes). It is not internal,
// since integration/controlplane, a module of its own, holds Eligible to the real DaemonSet controller.
//
// A node outside of the placement has the label neardns.io/cache: excluded, which install/base's DaemonSet avoids. So a node that keeps
// its cache keeps its pod, and nobody edits the DaemonSet (docs/decisions/D-055.md).
package placement

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// What the controller writes.
const (
	// Label is what the controller sets on nodes, and Excluded its value on those that run no cache.
	Label    = "neardns.io/cache"
	Excluded = "excluded"
)

// Cluster is what a decision is made of.
type Cluster struct {
	Nodes     []Node
	Upstreams int // ready endpoints of kube-dns
}

// Node is what matters of one node.
type Node struct {
	Name   string
	Labels map[string]string
	Taints []corev1.Taint
	Ready  bool // the node itself
	Cache  Cache
}

// Cache is the state of the cache on a node.
type Cache int

// The states of a cache, the best one last.
const (
	NoCache      Cache = iota // there is no pod of it
	UnreadyCache              // a pod is there, perhaps on its way out
	ReadyCache                // a pod is Ready and stays
)

func (n *Node) excluded() bool { return n.Labels[Label] == Excluded }

// serves tells whether pods of the node can count on its cache.
func (n *Node) serves() bool { return n.Ready && n.Cache == ReadyCache && !n.excluded() }

// Read takes of the API's objects what a decision needs: the cluster's nodes, the caches' pods, kube-dns's EndpointSlices. The result shares
// the nodes' labels and taints.
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
		caches[p.Spec.NodeName] = max(caches[p.Spec.NodeName], state) // while one hands over to another, there are two
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
	// Steps go in the order of names, so that a controller that takes over goes on with the same nodes.
	slices.SortFunc(c.Nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	for _, s := range slice {
		for _, e := range s.Endpoints {
			if len(e.Addresses) > 0 && (e.Conditions.Ready == nil || *e.Conditions.Ready) { // unset means ready: the field's documentation
				c.Upstreams++
			}
		}
	}
	return c
}
