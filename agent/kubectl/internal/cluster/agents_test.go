package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestMatch(t *testing.T) {
	pod := func(name string, phase corev1.PodPhase, ready corev1.ConditionStatus) corev1.Pod {
		p := corev1.Pod{Spec: corev1.PodSpec{NodeName: "a"}, Status: corev1.PodStatus{Phase: phase,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}}
		p.Name = name
		return p
	}
	got := match(nil, []corev1.Pod{pod("failed", corev1.PodFailed, corev1.ConditionFalse),
		pod("next", corev1.PodRunning, corev1.ConditionFalse), pod("serves", corev1.PodRunning, corev1.ConditionTrue)})
	if len(got) != 1 || got[0].Pod != "serves" || got[0].Why != "" {
		t.Errorf("during an update: %+v", got)
	}
}

// TestMatchRollout: in a rollout by a nodeSelector (docs/rollout.md), a node without the label is excluded, and one with it lacks an agent.
// During an update that removes the selector, there are pods with and without it.
func TestMatchRollout(t *testing.T) {
	node := func(name, rollout string) (n metav1.PartialObjectMetadata) {
		n.Name, n.Labels = name, map[string]string{"neardns.io/rollout": rollout}
		return n
	}
	nodes := []metav1.PartialObjectMetadata{node("chosen", "on"), node("later", "")}
	selective := corev1.Pod{Spec: corev1.PodSpec{NodeName: "served", NodeSelector: map[string]string{"neardns.io/rollout": "on"}}}
	everywhere := corev1.Pod{Spec: corev1.PodSpec{NodeName: "other"}}
	for name, c := range map[string]struct {
		pods     []corev1.Pod
		excluded string
	}{
		"no agent yet": {nil, ""}, "steps": {[]corev1.Pod{selective}, "later"}, "last step": {[]corev1.Pod{selective, everywhere}, ""},
	} {
		excluded := ""
		for _, a := range match(nodes, c.pods) {
			if a.Excluded {
				excluded += a.Node
			}
		}
		if excluded != c.excluded {
			t.Errorf("%s: %q is excluded, want %q", name, excluded, c.excluded)
		}
	}
}
