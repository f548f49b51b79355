package commands

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/neardns/neardns/agent/internal/overview"
	"github.com/neardns/neardns/agent/kubectl/internal/cluster"
	"github.com/neardns/neardns/internal/cli"
)

// usage has the query counts of one pod or namespace.
type usage struct {
	Name   string          `json:"name"` // namespace/name of a pod, or a namespace
	Node   string          `json:"node,omitempty"`
	Pods   int             `json:"pods,omitempty"` // of a namespace
	Rate   float64         `json:"queriesPerSecond"`
	Counts overview.Counts `json:"counts"`
	Misses uint64          `json:"misses"`
}

func topCommand(o *cluster.Options) *cobra.Command {
	c := &cobra.Command{Use: "top", Short: "show the pods or namespaces with the most queries, and their misses, NXDOMAIN and failures"}
	interval, out := intervalFlag(c), cli.OutputFlag(c)
	namespaces := c.Flags().Bool("namespaces", false, "add up the pods of each namespace")
	sortBy := c.Flags().String("sort-by", "queries", "`COUNT` to sort by: queries, misses, nxdomain or failures")
	limit := c.Flags().Int("limit", 20, "`NUMBER` of lines; 0: all")
	c.RunE = func(c *cobra.Command, _ []string) error {
		count := counts()[*sortBy]
		if count == nil {
			return cli.Usagef("--sort-by %s: queries, misses, nxdomain, failures", *sortBy)
		}
		cl, err := o.Open(c.ErrOrStderr())
		if err != nil {
			return err
		}
		nodes, err := readings(c.Context(), cl, *interval)
		if err != nil {
			return err
		}
		if err := addPods(c.Context(), cl, nodes, *interval > 0); err != nil {
			return err
		}
		all := usages(nodes, *namespaces, count)
		if *limit > 0 {
			all = all[:min(*limit, len(all))]
		}
		if err := out.Print(c.OutOrStdout(), map[string]any{"top": all}, func() string { return topTable(all, *namespaces) }); err != nil {
			return err
		}
		bad := slices.DeleteFunc(nodes, func(r reading) bool { return r.Status != nil || r.Verdict == excluded })
		for _, r := range bad {
			fmt.Fprintf(c.ErrOrStderr(), "node %s is not counted: %s\n", r.Node, r.Reason)
		}
		if len(bad) > 0 {
			return &cli.ExitError{Code: cli.Degraded}
		}
		return nil
	}
	return c
}

// addPods runs `neardns-agent pods` on nodes whose endpoint does not list pods, because listen.namespaces is not true there.
func addPods(ctx context.Context, c *cluster.Cluster, nodes []reading, interval bool) error {
	var silent []int // indexes of these nodes
	var agents []cluster.Agent
	for i, r := range nodes {
		if s := r.Status; s != nil && len(s.Pods) == 0 && len(s.States) > 0 {
			silent, agents = append(silent, i), append(agents, r.Agent)
		}
	}
	if interval && len(silent) > 0 {
		return cli.Usagef("--interval: the agents name no pods at %s; set listen.namespaces: true, or leave --interval out", overview.Path)
	}
	views, errs := cluster.ExecAll(ctx, c, agents, func(ctx context.Context, a cluster.Agent) (out []overview.Pod, err error) {
		text, err := c.Exec(ctx, a.Pod, "pods", "-o", "json")
		if err != nil {
			return nil, fmt.Errorf("it names no pods at %s (listen.namespaces), and pods/exec fails: %w", overview.Path, err)
		}
		return out, json.Unmarshal(text, &out)
	})
	for at, i := range silent {
		if nodes[i].Status.Pods = views[at]; errs[at] != nil {
			nodes[i].Status, nodes[i].Reason = nil, errs[at].Error()
		}
	}
	return nil
}

// counts has the values of --sort-by.
func counts() map[string]func(usage) uint64 {
	return map[string]func(usage) uint64{
		"queries":  func(u usage) uint64 { return u.Counts.Queries },
		"misses":   func(u usage) uint64 { return u.Misses },
		"nxdomain": func(u usage) uint64 { return u.Counts.NXDomain },
		"failures": func(u usage) uint64 { return u.Counts.Failures },
	}
}

// usages returns the counts by pod or by namespace, those with the highest count first.
func usages(nodes []reading, namespaces bool, count func(usage) uint64) []usage {
	found := map[string]*usage{}
	for _, r := range nodes {
		if r.Status == nil {
			continue
		}
		for _, p := range r.Status.Pods {
			u := usage{Name: cmp.Or(p.Pod, "-"), Node: r.Node}
			if namespaces {
				u.Name, _, _ = strings.Cut(p.Pod, "/")
				u.Node = ""
			}
			key := u.Name + " " + u.Node
			if found[key] == nil {
				found[key] = &u
			}
			sum := found[key]
			sum.Counts = sum.Counts.Add(p.Counts)
			sum.Misses = sum.Counts.Queries - min(sum.Counts.Hits, sum.Counts.Queries)
			if s := r.seconds(); s > 0 {
				sum.Rate += float64(p.Counts.Queries) / s
			}
			if namespaces {
				sum.Pods++
			}
		}
	}
	out := []usage{}
	for _, u := range found {
		out = append(out, *u)
	}
	slices.SortFunc(out, func(a, b usage) int {
		return cmp.Or(cmp.Compare(count(b), count(a)), cmp.Compare(b.Counts.Queries, a.Counts.Queries), cmp.Compare(b.Rate, a.Rate),
			cmp.Compare(a.Name, b.Name), cmp.Compare(a.Node, b.Node))
	})
	return out
}

func topTable(all []usage, namespaces bool) string {
	rows := [][]any{{"POD", "NODE", "QUERIES/S", "QUERIES", "HITS", "MISSES", "KERNEL", "NXDOMAIN", "FAILURES"}}
	if namespaces {
		rows[0][0], rows[0][1] = "NAMESPACE", "PODS"
	}
	for _, u := range all {
		row := []any{u.Name, u.Node, fmt.Sprintf("%.1f", u.Rate), u.Counts.Queries, percent(u.Counts.Hits, u.Counts.Queries), u.Misses,
			percent(u.Counts.Kernel, u.Counts.Queries), u.Counts.NXDomain, u.Counts.Failures}
		if namespaces {
			row[1] = u.Pods
		}
		rows = append(rows, row)
	}
	return table(rows)
}
