package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/neardns/neardns/agent/internal/overview"
	"github.com/neardns/neardns/agent/kubectl/internal/cluster"
	"github.com/neardns/neardns/internal/cli"
)

// nodeLookup is the result of querying a name on one node.
type nodeLookup struct {
	Node string `json:"node"`
	overview.Lookup
}

func queryCommand(o *cluster.Options) *cobra.Command {
	c := &cobra.Command{Use: "query NAME", Short: "query a name on a node, or as a pod: which server answers, cached or not (needs pods/exec)"}
	c.Args = func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return cli.Usagef("write one name, such as kubernetes.default.svc.cluster.local")
		}
		return nil
	}
	pod := c.Flags().String("pod", "", "`NAMESPACE/NAME` of a pod: query on its node, and from the pod too; "+
		"without it, query on --node or the first node")
	kind := c.Flags().String("type", "A", "`TYPE` of the records")
	out := cli.OutputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if _, err := out.Format(); err != nil {
			return err
		}
		namespace, name, ok := strings.Cut(*pod, "/")
		if *pod != "" && (!ok || namespace == "" || name == "" || strings.Contains(name, "/")) {
			return cli.Usagef("--pod %s: write namespace/name", *pod)
		}
		cl, err := o.Open(c.ErrOrStderr())
		if err != nil {
			return err
		}
		if *pod != "" {
			var p corev1.Pod
			if err := cl.Get(c.Context(), "/api/v1/namespaces/"+namespace+"/pods/"+name, &p); err != nil {
				return err
			}
			if o.Node = p.Spec.NodeName; o.Node == "" {
				return fmt.Errorf("pod %s is on no node yet", *pod)
			}
		}
		l, err := lookup(c.Context(), cl, append([]string{"query", "-o", "json", "--type", *kind, "--pod", *pod, "--"}, args...))
		if err != nil {
			return err
		}
		return out.Print(c.OutOrStdout(), l, func() string { return lookupTable(l) })
	}
	return c
}

// lookup runs the agent's `query` command on the first node whose agent can be read.
func lookup(ctx context.Context, c *cluster.Cluster, command []string) (*nodeLookup, error) {
	agents, err := c.Agents(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(agents, func(a cluster.Agent) bool { return a.Why == "" })
	if i < 0 {
		return nil, fmt.Errorf("node %s: %s", agents[0].Node, agents[0].Why)
	}
	l := &nodeLookup{Node: agents[i].Node}
	_, errs := cluster.ExecAll(ctx, c, agents[i:i+1], func(ctx context.Context, a cluster.Agent) (struct{}, error) {
		text, err := c.Exec(ctx, a.Pod, command...)
		if err == nil {
			err = json.Unmarshal(text, &l.Lookup)
		}
		return struct{}{}, err
	})
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("node %s: %w", l.Node, err)
	}
	return l, nil
}

func lookupTable(l *nodeLookup) string {
	t := newTable("FROM", "SERVER", "ANSWERED BY", "MS", "CODE", "TTL")
	t.end("RECORDS")
	for _, r := range l.Replies {
		records := strings.Join(r.Records, ", ")
		if r.Error != "" {
			records = r.Error
		}
		t.add(r.From, r.Server, r.By, r.Millis, dash(r.Code), r.TTL)
		t.end(dash(records))
	}
	head := fmt.Sprintf("%s %s on node %s", l.Name, l.Type, l.Node)
	if l.Pod != "" {
		head += fmt.Sprintf(", from %s, which is %s", l.Pod, l.Path)
	}
	cached := l.Cached
	if l.Left > 0 {
		cached += fmt.Sprintf(", %d s left", l.Left)
	}
	return cluster.Printable(head+"\nin the cache before: "+cached) + "\n\n" + t.text()
}
