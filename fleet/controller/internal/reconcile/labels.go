package reconcile

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/neardns/neardns/fleet/controller/placement"
)

// labels remembers the node labels that this controller wrote and that the watch cache may not show yet. Without it, a node would be
// patched twice for one change, and a step would exclude too many nodes.
type labels struct {
	written map[string]*corev1.Node // by node name: the node as the API server returned it after the write
	refused map[string]bool         // by node name: the last write of the label failed
}

// sent records the API server's answer to a write.
func (l *labels) sent(answer *corev1.Node) {
	if l.written == nil {
		l.written = map[string]*corev1.Node{}
	}
	l.written[answer.Name] = answer
	delete(l.refused, answer.Name)
}

func (l *labels) refuse(name string) {
	if l.refused == nil {
		l.refused = map[string]bool{}
	}
	l.refused[name] = true
}

// refusedLast moves the nodes for which the last write of the label failed to the end of the list, so that the next step starts with other
// nodes.
func (l *labels) refusedLast(nodes []placement.Node) {
	rank := func(n placement.Node) int {
		if l.refused[n.Name] {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(nodes, func(a, b placement.Node) int { return rank(a) - rank(b) })
}

// asSent returns the node as the watch cache has it. If that is older than this controller's last write, the result has the label that
// was written. It does not modify its argument, which belongs to the cache.
func (l *labels) asSent(node *corev1.Node) *corev1.Node {
	written, ok := l.written[node.Name]
	if !ok {
		return node
	}
	if node.UID != written.UID || !older(node, written) {
		delete(l.written, node.Name)
		return node
	}
	out := *node
	out.Labels = maps.Clone(node.Labels)
	delete(out.Labels, placement.Label)
	if value, ok := written.Labels[placement.Label]; ok {
		if out.Labels == nil {
			out.Labels = map[string]string{}
		}
		out.Labels[placement.Label] = value
	}
	return &out
}

// older reports whether a is an older version of an object than b, by resourceVersion. Kubernetes documents this order since 1.35;
// earlier API servers on etcd have it too.
func older(a, b metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order < 0
}

// forget drops nodes that no longer exist.
func (l *labels) forget(nodes map[string]*corev1.Node) {
	maps.DeleteFunc(l.written, func(name string, _ *corev1.Node) bool { return nodes[name] == nil })
	maps.DeleteFunc(l.refused, func(name string, _ bool) bool { return nodes[name] == nil })
}
