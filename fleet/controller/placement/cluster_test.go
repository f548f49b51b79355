package placement

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestRead(t *testing.T) {
	ready := func(s corev1.ConditionStatus) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: s}}}
	}
	pod := func(node string, status corev1.PodStatus) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}, Status: status}
	}
	going := pod("going", ready(corev1.ConditionTrue))
	going.DeletionTimestamp = &metav1.Time{}
	failed := pod("failed", ready(corev1.ConditionTrue))
	failed.Status.Phase = corev1.PodFailed
	pods := []*corev1.Pod{
		pod("one", ready(corev1.ConditionTrue)), pod("starting", ready(corev1.ConditionFalse)), going, failed, pod("", ready(corev1.ConditionTrue)),
		pod("two", ready(corev1.ConditionTrue)), pod("two", ready(corev1.ConditionFalse)),
	}
	var nodes []*corev1.Node
	for _, name := range []string{"two", "starting", "one", "none", "going", "failed"} {
		nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionUnknown}[name != "none"]}},
		}})
	}
	no := false
	slices := []*discoveryv1.EndpointSlice{
		{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}, {Addresses: []string{"10.0.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: &no}}, {}}},
		{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"fd00::1"}}}},
	}
	want := Cluster{Upstreams: 2, Nodes: []Node{
		{Name: "failed", Ready: true}, {Name: "going", Ready: true, Cache: UnreadyCache}, {Name: "none"}, {Name: "one", Ready: true, Cache: ReadyCache},
		{Name: "starting", Ready: true, Cache: UnreadyCache}, {Name: "two", Ready: true, Cache: ReadyCache},
	}}
	testutil.Equal(t, "the cluster", want, Read(nodes, pods, slices))
}
