package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
)

// BasePod returns those fields of the DaemonSet's pod template in install/base that decide on which nodes the cache can run at all
// (without the node affinity about Label). A test in integration/cluster-manifests compares it with the manifest.
func BasePod() corev1.PodSpec {
	return corev1.PodSpec{
		NodeSelector: map[string]string{corev1.LabelOSStable: string(corev1.Linux)},
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: "type", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"virtual-kubelet"}},
				{Key: "eks.amazonaws.com/compute-type", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"fargate"}},
			}}},
		}}},
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		HostNetwork: true,
	}
}

// automatic returns the tolerations that the DaemonSet controller adds to each pod with host networking
// (AddOrUpdateDaemonPodTolerations in pkg/controller/daemon/util/daemonset_util.go, Kubernetes 1.36).
func automatic() []corev1.Toleration {
	var out []corev1.Toleration
	for _, t := range []corev1.Taint{
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeDiskPressure, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodePIDPressure, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeNetworkUnavailable, Effect: corev1.TaintEffectNoSchedule},
	} {
		out = append(out, corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOpExists, Effect: t.Effect})
	}
	return out
}

// rule is a placement in a form that can be compared with many nodes quickly.
type rule struct {
	selector    map[string]string
	required    nodeaffinity.RequiredNodeAffinity
	tolerations []corev1.Toleration
}

// newRule converts a placement to a rule. For nil it returns a rule that matches every node.
func newRule(p *v1alpha1.NodePlacement) rule {
	everything := []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	if p == nil {
		return rule{required: nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{}), tolerations: everything}
	}
	r := rule{selector: map[string]string{}, tolerations: everything}
	for k, v := range p.NodeSelector {
		r.selector[k] = string(v)
	}
	if len(r.selector) == 0 {
		r.selector = BasePod().NodeSelector
	}
	if p.Tolerations != nil {
		r.tolerations = append(automatic(), tolerations(p.Tolerations)...)
	}
	r.required = nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: corev1.PodSpec{NodeSelector: r.selector}})
	return r
}

// matches reports whether the node has the labels that the rule requires.
func (r rule) matches(n *Node) bool {
	ok, err := r.required.Match(n.object())
	return ok && err == nil
}

// untolerated returns the node's taints that the rule does not tolerate and that keep a pod away. PreferNoSchedule never does.
func (r rule) untolerated(n *Node) (out []corev1.Taint) {
	taints := n.Taints
	for {
		taint, found := scheduling.FindMatchingUntoleratedTaint(klog.Logger{}, taints, r.tolerations, func(t *corev1.Taint) bool {
			return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
		}, false)
		if !found {
			return out
		}
		out = append(out, taint)
		i := slices.Index(taints, taint)
		taints = taints[i+1:]
	}
}

// wants reports whether the node should run the cache. It should if it matches the rule and the rule tolerates all its taints. It also
// should if its only other taints are those of a node that is down, because the DaemonSet controller does not delete a running pod for
// these. As that controller does not start a pod there either, a node that is already excluded then stays excluded.
func (r rule) wants(n *Node) bool {
	if !r.matches(n) {
		return false
	}
	down := func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
	}
	taints := r.untolerated(n)
	return len(taints) == 0 || !n.excluded() && !slices.ContainsFunc(taints, func(t corev1.Taint) bool { return !down(t) })
}

// Eligible reports whether a DaemonSet with the pods of install/base, restricted to the placement, would start a pod on the node. Pods
// that run on the node now make no difference. A nil placement adds no restriction.
func Eligible(p *v1alpha1.NodePlacement, n *Node) bool {
	r := newRule(p)
	return possible(n) && r.matches(n) && len(r.untolerated(n)) == 0
}

// possible reports whether the cache can run on the node at all, by the DaemonSet's own node selector and affinity.
func possible(n *Node) bool {
	ok, err := base.Match(n.object())
	return ok && err == nil
}

var base = nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: BasePod()})

// object returns an API Node that has only this node's name and labels, which is all that affinity matching needs.
func (n *Node) object() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}}
}

var singular = strings.NewReplacer("lack ", "lacks ", "have ", "has ", "are ", "is ")

// mostObjections is the maximum number of causes that objections returns, and of names that listed returns.
const mostObjections = 5

// objections returns why nodes do not match a placement, most frequent cause first: "12 nodes lack a=b, 3 nodes have taint c:NoSchedule". A
// node is counted for each label that it lacks. If it lacks none, it is counted because it does not match the pods' own node affinity; if
// it does, for each taint that is not tolerated; if there is none, because it is not Ready.
func (r rule) objections(nodes []*Node) string {
	counts := map[string]int{}
	for _, n := range nodes {
		causes := 0
		add := func(cause string) { counts[cause]++; causes++ }
		for k, v := range r.selector {
			if has, ok := n.Labels[k]; !ok || has != v {
				add(strings.TrimSuffix("lack "+k+"="+v, "="))
			}
		}
		if causes == 0 && !r.matches(n) {
			add("have not what the pods' own node affinity requires")
		}
		if causes > 0 {
			continue
		}
		for _, t := range r.untolerated(n) {
			add("have taint " + t.ToString())
		}
		if causes == 0 && !n.Ready {
			add("are not Ready")
		}
	}
	causes := slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return cmp.Or(counts[b]-counts[a], strings.Compare(a, b)) })
	var out []string
	for i, cause := range causes {
		if i == mostObjections {
			out = append(out, fmt.Sprintf("and %d causes more", len(causes)-i))
			break
		}
		if counts[cause] == 1 {
			cause = singular.Replace(cause)
			out = append(out, "1 node "+cause)
			continue
		}
		out = append(out, fmt.Sprintf("%d nodes %s", counts[cause], cause))
	}
	return strings.Join(out, ", ")
}
