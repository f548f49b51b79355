package commands

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/neardns/neardns/agent/kubectl/internal/cluster"
	"github.com/neardns/neardns/agent/kubectl/internal/policies"
	"github.com/neardns/neardns/internal/cli"
)

// finding is one fault, with the names of the nodes or namespaces that have it.
type finding struct {
	State      string   `json:"state"` // FAIL or WARN
	Check      string   `json:"check"`
	What       string   `json:"what"`
	Do         string   `json:"do,omitempty"`
	Nodes      []string `json:"nodes,omitempty"`
	Namespaces []string `json:"namespaces,omitempty"`
}

const (
	fail = "FAIL"
	warn = "WARN"
)

// report is the result of the doctor: that of `neardns-agent doctor -o json` for a node, or the one for the whole cluster.
type report struct {
	Findings []finding `json:"findings"`
	Verdict  string    `json:"verdict"`
	Good     bool      `json:"good"` // nothing fails, and every node was examined
}

func doctorCommand(o *cluster.Options) *cobra.Command {
	c := &cobra.Command{Use: "doctor", Short: "check every node, and find network policies that keep pods from the cache (needs pods/exec)"}
	out := cli.OutputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		cl, err := o.Open(c.ErrOrStderr())
		if err != nil {
			return err
		}
		agents, err := cl.Agents(c.Context())
		if err != nil {
			return err
		}
		r := examine(c.Context(), cl, agents)
		return out.Report(c.OutOrStdout(), r, r.text, r.Good)
	}
	return c
}

// examine runs the doctor on every node, and checks the cluster's network policies.
func examine(ctx context.Context, c *cluster.Cluster, agents []cluster.Agent) report {
	agents = slices.DeleteFunc(agents, func(a cluster.Agent) bool { return a.Excluded })
	nodes, errs := cluster.ExecAll(ctx, c, agents, func(ctx context.Context, a cluster.Agent) (r report, err error) {
		text, err := c.Exec(ctx, a.Pod, "doctor", "-o", "json")
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		return r, err
	})
	r := grouped(agents, nodes, errs)
	var list networkingv1.NetworkPolicyList
	if err := c.Get(ctx, "/apis/networking.k8s.io/v1/networkpolicies", nil, "", &list); apierrors.IsForbidden(err) {
		c.Note("network policies are not examined: %v", err)
	} else if err != nil {
		r.Findings = append(r.Findings, finding{State: warn, Check: "network policy", What: "could not be read: " + err.Error()})
	} else {
		r.addBlocking(list.Items, steering(ctx, c, agents, errs))
	}
	return r
}

// addBlocking adds a finding about network policies that keep pods' queries from the cache.
func (r *report) addBlocking(list []networkingv1.NetworkPolicy, steering []netip.Addr) {
	names := policies.Blocking(list, steering)
	if len(names) == 0 {
		return
	}
	f := finding{State: warn, Check: "network policy",
		What: fmt.Sprintf("%s allow kube-dns but not %s: neardns's pods there stay on kube-dns", some(names), join(steering)),
		Do:   "kubectl apply -n NAMESPACE -f install/allow-steering-networkpolicy.yaml, with the podSelector of that policy"}
	for _, n := range names {
		namespace, _, _ := strings.Cut(n, "/")
		f.Namespaces = append(f.Namespaces, namespace)
	}
	f.Namespaces = slices.Compact(f.Namespaces)
	r.Findings = append(r.Findings, f)
}

func join(addresses []netip.Addr) string {
	var out []string
	for _, a := range addresses {
		out = append(out, a.String())
	}
	return strings.Join(out, " and ")
}

// steering returns the steering addresses, to which pods' queries are rewritten, as the first examined agent reports them (with some
// arrangements there are none); the default if it cannot be read.
func steering(ctx context.Context, c *cluster.Cluster, agents []cluster.Agent, errs []error) []netip.Addr {
	if i := slices.Index(errs, nil); i >= 0 {
		if nodes, errs := c.ReadAll(ctx, agents[i:i+1]); errs[0] == nil {
			return nodes[0].Steering
		}
	}
	return []netip.Addr{netip.MustParseAddr("169.254.20.11")}
}

// grouped merges equal findings of several nodes into one, and sorts them: failures first, then by the number of nodes.
func grouped(agents []cluster.Agent, nodes []report, errs []error) report {
	found := map[[4]string]*finding{} // by state, check, text and remedy
	good := 0
	add := func(f finding, node string) {
		key := [4]string{f.State, f.Check, f.What, f.Do}
		if found[key] == nil {
			found[key] = &finding{State: f.State, Check: f.Check, What: f.What, Do: f.Do}
		}
		if g := found[key]; !slices.Contains(g.Nodes, node) {
			g.Nodes = append(g.Nodes, node)
		}
	}
	for i, a := range agents {
		if errs[i] != nil {
			add(finding{State: fail, Check: "node", What: "not examined: " + errs[i].Error()}, a.Node)
			continue
		}
		if nodes[i].Good {
			good++
		}
		for _, f := range nodes[i].Findings {
			if f.State == fail || f.State == warn {
				add(f, a.Node)
			}
		}
	}
	r := report{Findings: []finding{}, Good: good == len(agents), Verdict: fmt.Sprintf("%d of %d nodes are good", good, len(agents))}
	for _, f := range found {
		r.Findings = append(r.Findings, *f)
	}
	slices.SortFunc(r.Findings, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.State, b.State), cmp.Compare(len(b.Nodes), len(a.Nodes)), cmp.Compare(a.Check, b.Check),
			cmp.Compare(a.What, b.What))
	})
	return r
}

// text returns the report for people: each finding with its remedy and its nodes or namespaces, and the verdict last.
func (r *report) text() string {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s  %s: %s\n", f.State, f.Check, strings.ReplaceAll(f.What, "\n", "; "))
		if f.Do != "" {
			fmt.Fprintf(&b, "      do: %s\n", f.Do)
		}
		for kind, names := range map[string][]string{"node": f.Nodes, "namespace": f.Namespaces} {
			if len(names) > 0 {
				fmt.Fprintf(&b, "      %s: %s\n", cli.Plural(len(names), kind), some(names))
			}
		}
		b.WriteString("\n")
	}
	b.WriteString(r.Verdict + "\n")
	return cli.Printable(b.String())
}

// some returns the names joined by commas, shortened if there are many; -o json prints all.
func some(names []string) string {
	const most = 10
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
