package controlplane

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/controller/placement"
	"github.com/neardns/neardns/integration/compat"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestOracle compares Eligible with the nodes on which the real DaemonSet controller makes pods: for random nodes and random placements,
// each written into a DaemonSet as a person would do it by hand.
func TestOracle(t *testing.T) {
	const rounds, sets, nodes = 20, 100, 8
	p := Start(t, false, "daemonset-controller,serviceaccount-controller")
	random := rand.New(rand.NewPCG(7, 7))
	compared, chosen := 0, 0
	for round := range rounds {
		made := make([]*corev1.Node, nodes)
		for i := range made {
			made[i] = randomNode(random, fmt.Sprintf("n%d-%d", round, i))
			AddNode(t, p.Client, made[i].Name, made[i].Labels)
			// The API server adds a taint to every new node, so those that are wanted come later.
			Await(t, "the node has its labels and taints", func() error {
				n := &corev1.Node{}
				if err := p.Client.Get(t.Context(), client.ObjectKey{Name: made[i].Name}, n); err != nil {
					return err
				}
				n.Spec.Taints, n.Labels = made[i].Spec.Taints, made[i].Labels
				return p.Client.Update(t.Context(), n)
			})
		}
		namespace := fmt.Sprintf("round%d", round)
		testutil.Must(t, p.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
		Await(t, "the namespace has its account", func() error {
			return p.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "default"}, &corev1.ServiceAccount{})
		})
		placements := make([]*v1alpha1.NodePlacement, sets)
		for i := range placements {
			placements[i] = randomPlacement(random)
			testutil.Must(t, p.Client.Create(t.Context(), daemonSet(namespace, fmt.Sprintf("s%d", i), placements[i])))
		}
		got := p.chosen(t, namespace, sets)
		for i, placed := range placements {
			var want []string
			for _, n := range made {
				if placement.Eligible(placed, &placement.Node{Name: n.Name, Labels: n.Labels, Taints: n.Spec.Taints}) {
					want = append(want, n.Name)
				}
			}
			compared++
			chosen += len(want)
			if name := fmt.Sprintf("s%d", i); !slices.Equal(got[name], want) {
				t.Errorf("%+v: the DaemonSet controller chooses %v, we %v", *placed, got[name], want)
			}
		}
		for i := range sets {
			set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("s%d", i)}}
			testutil.Must(t, p.Client.Delete(t.Context(), set, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
		}
		for _, n := range made {
			testutil.Must(t, p.Client.Delete(t.Context(), n))
		}
	}
	compat.Say(t, "placement", "who is eligible", fmt.Sprintf("as the DaemonSet controller decides: %d random sets, no difference", compared))
	compat.Say(t, "placement", "tolerations unset", "every taint is tolerated")
	if chosen < compared || chosen > compared*nodes*3/4 {
		t.Errorf("%d of %d nodes are chosen: too one-sided to show much", chosen, compared*nodes)
	}
}

// chosen waits until the controller has dealt with every set, and returns the nodes of each one's pods.
func (p *Plane) chosen(t *testing.T, namespace string, sets int) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	Await(t, "the DaemonSet controller is done", func() error {
		var list appsv1.DaemonSetList
		var pods corev1.PodList
		if err := p.Client.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
			return err
		}
		if err := p.Client.List(t.Context(), &pods, client.InNamespace(namespace)); err != nil {
			return err
		}
		clear(out)
		for i := range pods.Items {
			pod := &pods.Items[i]
			// The controller binds a pod to its node by an affinity of this form.
			terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			out[pod.Labels["set"]] = append(out[pod.Labels["set"]], terms[0].MatchFields[0].Values[0])
		}
		for i := range list.Items {
			set := &list.Items[i]
			slices.Sort(out[set.Name])
			if set.Status.ObservedGeneration != set.Generation || int(set.Status.DesiredNumberScheduled) != len(out[set.Name]) ||
				set.Status.CurrentNumberScheduled != set.Status.DesiredNumberScheduled {
				return fmt.Errorf("%s: %+v, %d pods", set.Name, set.Status, len(out[set.Name]))
			}
		}
		return testutil.ErrorIf(len(list.Items) != sets, "%d sets", len(list.Items))
	})
	return out
}

// daemonSet is install/base's, as far as placement goes, narrowed by hand: the selector replaces or completes its own, the tolerations
// replace its own.
func daemonSet(namespace, name string, p *v1alpha1.NodePlacement) *appsv1.DaemonSet {
	pod := placement.BasePod()
	for k, v := range p.NodeSelector {
		if k != corev1.LabelOSStable {
			pod.NodeSelector[k] = string(v)
			continue
		}
		// The DaemonSet's own selector stays: the placement's comes next to it.
		terms := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		terms[0].MatchExpressions = append(terms[0].MatchExpressions, corev1.NodeSelectorRequirement{Key: k, Operator: corev1.NodeSelectorOpIn, Values: []string{string(v)}})
	}
	if p.Tolerations != nil {
		pod.Tolerations = nil
		for _, t := range p.Tolerations {
			pod.Tolerations = append(pod.Tolerations, corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOperator(t.Operator), Value: t.Value,
				Effect: corev1.TaintEffect(t.Effect), TolerationSeconds: t.TolerationSeconds})
		}
	}
	pod.Containers = []corev1.Container{{Name: "a", Image: "a"}}
	labels := map[string]string{"set": name}
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod}}}
}

func one[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func randomNode(r *rand.Rand, name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	if os := one(r, "linux", "linux", "linux", "linux", "windows", ""); os != "" {
		n.Labels[corev1.LabelOSStable] = os
	}
	for _, k := range []string{"a", "b", "c.io/d"} {
		if v := one(r, "-", "", "x", "y"); v != "-" {
			n.Labels[k] = v
		}
	}
	switch r.IntN(20) {
	case 0:
		n.Labels["type"] = "virtual-kubelet"
	case 1:
		n.Labels["eks.amazonaws.com/compute-type"] = "fargate"
	}
	seen := map[string]bool{}
	for range one(r, 0, 0, 1, 1, 2, 3) {
		t := corev1.Taint{Effect: one(r, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)}
		t.Key = one(r, "t", "t", "u.io/v", corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeUnschedulable,
			corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure, corev1.TaintNodePIDPressure, corev1.TaintNodeNetworkUnavailable)
		if !strings.HasPrefix(t.Key, "node.") {
			t.Value = one(r, "", "x", "y")
		}
		if id := t.Key + string(t.Effect); !seen[id] {
			seen[id] = true
			n.Spec.Taints = append(n.Spec.Taints, t)
		}
	}
	return n
}

func randomPlacement(r *rand.Rand) *v1alpha1.NodePlacement {
	p := &v1alpha1.NodePlacement{}
	for _, k := range []string{"a", "b", "c.io/d", corev1.LabelOSStable} {
		if v := one(r, "-", "-", "-", "", "x"); v != "-" {
			if p.NodeSelector == nil {
				p.NodeSelector = map[string]v1alpha1.LabelValue{}
			}
			if k == corev1.LabelOSStable {
				v = one(r, "linux", "linux", "windows")
			}
			p.NodeSelector[k] = v1alpha1.LabelValue(v)
		}
	}
	if r.IntN(3) == 0 {
		return p
	}
	p.Tolerations = []v1alpha1.Toleration{}
	for range r.IntN(4) {
		t := v1alpha1.Toleration{Key: one(r, "t", "t", "u.io/v", corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, ""), Operator: one(r, "", "Equal", "Exists"),
			Effect: one(r, "", "NoSchedule", "PreferNoSchedule", "NoExecute")}
		if t.Key == "" {
			t.Operator = "Exists"
		}
		if t.Operator != "Exists" {
			t.Value = one(r, "", "x", "y")
		}
		if t.Effect == "NoExecute" && r.IntN(2) == 0 {
			seconds := int64(60)
			t.TolerationSeconds = &seconds
		}
		p.Tolerations = append(p.Tolerations, t)
	}
	return p
}
