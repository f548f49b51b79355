package controlplane

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
)

// The tests that `make demo-placement` runs print each step and what comes of it. Other runs print nothing.

func demo() bool { return os.Getenv("NEARDNS_DEMO") != "" }

func show(step, result string) {
	if demo() {
		fmt.Printf("\n$ %s\n  %s\n", step, strings.ReplaceAll(strings.TrimSpace(result), "\n", "\n  "))
	}
}

// showKubectl runs a command only to show it.
func (m *member) showKubectl(args ...string) {
	if demo() {
		out, _ := m.Kubectl(args...) // an error is part of what it printed
		show("kubectl"+m.context()+strings.Join(args, " "), out)
	}
}

// context is the option that names the cluster.
func (m *member) context() string { return " --context=" + cmp.Or(m.id, "new") + " " }

// showApply shows a manifest that is applied, unless it is long or a Secret.
func showApply(context, text string) {
	if len(text) < 1000 && !strings.Contains(text, "kind: Secret") && !strings.Contains(text, "kind: CustomResourceDefinition") {
		show("kubectl"+context+"apply -f - <<END", text+"END")
	}
}

// showPlacement shows the conditions of the NodeDNS, and where caches and kube-dns are.
func (c *cluster) showPlacement() {
	if !demo() {
		return
	}
	object, lines := &v1alpha1.NodeDNS{}, []string{}
	if err := c.Client.Get(c.t.Context(), client.ObjectKey{Name: "default"}, object); err != nil {
		lines = append(lines, err.Error())
	}
	for _, condition := range object.Status.Conditions {
		lines = append(lines, fmt.Sprintf("%-22s %-16s %s", condition.Type, condition.Reason, condition.Message))
	}
	nodes := slices.Sorted(maps.Keys(c.caches()))
	some := strings.Join(nodes[:min(len(nodes), 6)], " ")
	lines = append(lines, fmt.Sprintf("caches on %d of %d nodes: %s", len(nodes), len(c.nodes()), some))
	if on := c.dnsPods(); len(on) > 0 {
		lines = append(lines, "kube-dns on "+strings.Join(on, " "))
	}
	if text := strings.Join(lines, "\n"); text != c.shown {
		c.shown = text
		show("kubectl describe nodedns default, and kubectl get pods -o wide, in short", text)
	}
}
