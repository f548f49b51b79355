package clustermanifests

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// kubectl stands in for the real one: it lists the nodes, and records each label that it would write.
const kubectl = `#!/bin/sh
case "$1 $2" in
"get nodes") cat "$ROLLOUT/nodes" ;;
"label node" | "label nodes" | "label node/"*) echo "$@" >>"$ROLLOUT/labels" ;;
esac
`

// TestRolloutChoosesNodes runs the label commands of docs/rollout.md over 50 nodes, one of them virtual and one excluded from the cache: by
// labels alone, the guide's DaemonSet runs on none, on one, on a tenth and, without the patch, on all, and leaves a node that backs out.
func TestRolloutChoosesNodes(t *testing.T) {
	text := readFile(t, filepath.Join(install, "../docs/rollout.md"))
	patched := the[*appsv1.DaemonSet](t, decode(t, "the overlay", mine(t, map[string]string{
		"kustomization.yaml": strings.Replace(overlayIn(t, "../docs/rollout.md", "## Prepare"), "../neardns/install/base", "../base", 1),
		"nodeconfig.yaml":    "kind: NodeConfig\n",
	}))).Spec.Template.Spec
	base := the[*appsv1.DaemonSet](t, decode(t, "base", render(t, "base"))).Spec.Template.Spec
	nodes := make([]corev1.Node, 50)
	for i := range nodes {
		nodes[i] = corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i+1), Labels: map[string]string{"kubernetes.io/os": "linux"}}}
	}
	nodes[10].Labels["type"] = "virtual-kubelet"
	nodes[19].Labels["neardns.io/cache"] = "excluded"
	for _, step := range []struct {
		heading string // the section whose commands run
		pod     corev1.PodSpec
		want    []int // numbers of the nodes
	}{
		{"## Prepare", patched, nil},
		{"## Step 0: observe on one node", patched, []int{7}},
		{"## Step 1: steer on one node", patched, []int{7}},
		{"## Step 2: 5 or 10 % of the nodes", patched, []int{1, 7, 21, 31, 41}}, // 11 is virtual
		{"## Back out", patched, []int{1, 21, 31, 41}},
		{"## Step 3: all nodes", base, slices.DeleteFunc(numbers(50), func(i int) bool { return i == 11 || i == 20 })},
	} {
		relabel(t, nodes, commandsBelow(t, text, step.heading))
		equal(t, step.heading+": the agent runs on", step.want, chosen(t, step.pod, nodes))
	}
	equal(t, "nodes on which labels are left", nil, chosen(t, patched, nodes))
}

func numbers(n int) (out []int) {
	for i := range n {
		out = append(out, i+1)
	}
	return out
}

// commandsBelow are the lines of a section that label nodes, from its blocks and its tables.
func commandsBelow(t *testing.T, text, heading string) string {
	t.Helper()
	_, section, ok := strings.Cut(text, "\n"+heading+"\n")
	if !ok {
		t.Fatalf("docs/rollout.md has no section %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var out []string
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "`"); strings.HasPrefix(line, "|") && len(cells) > 1 {
			line = cells[1] + "\n"
		}
		if strings.Contains(line, "kubectl label ") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

// relabel runs commands in a shell with the stand-in for kubectl, and gives the nodes the labels.
func relabel(t *testing.T, nodes []corev1.Node, commands string) {
	t.Helper()
	dir := t.TempDir()
	var names strings.Builder
	for _, n := range nodes {
		fmt.Fprintf(&names, "node/%s\n", n.Name)
	}
	for name, text := range map[string]string{"kubectl": kubectl, "nodes": names.String(), "labels": ""} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", commands)
	cmd.Env = append(os.Environ(), "ROLLOUT="+dir, "PATH="+dir+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(readFile(t, filepath.Join(dir, "labels"))) {
		words := slices.DeleteFunc(strings.Fields(line), func(w string) bool { return w == "label" || w == "node" || w == "nodes" || w == "--overwrite" })
		for i := range nodes {
			if words[0] != "--all" && strings.TrimPrefix(words[0], "node/") != nodes[i].Name {
				continue
			}
			if key, gone := strings.CutSuffix(words[1], "-"); gone {
				delete(nodes[i].Labels, key)
			} else {
				key, value, _ := strings.Cut(words[1], "=")
				nodes[i].Labels[key] = value
			}
		}
	}
}

// chosen are the numbers of the nodes that a pod's node selector and required affinity choose.
func chosen(t *testing.T, pod corev1.PodSpec, nodes []corev1.Node) (out []int) {
	t.Helper()
	terms := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchFields) > 0 {
		t.Fatalf("the affinity has other terms than this test knows: %+v", terms)
	}
	for i, n := range nodes {
		has := labels.Set(maps.Clone(n.Labels))
		matches := labels.SelectorFromSet(pod.NodeSelector).Matches(has)
		for _, e := range terms[0].MatchExpressions {
			if e.Operator != corev1.NodeSelectorOpNotIn {
				t.Fatalf("the affinity has another operator than this test knows: %+v", e)
			}
			matches = matches && !slices.Contains(e.Values, has[e.Key])
		}
		if matches {
			out = append(out, i+1)
		}
	}
	return out
}
