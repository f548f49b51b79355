package commands

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/neardns/neardns/agent/kubectl/internal/cluster"
	"github.com/neardns/neardns/internal/cli"
)

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
			if err := cl.Get(c.Context(), "/api/v1/namespaces/"+namespace+"/pods/"+name, nil, "", &p); err != nil {
				return err
			}
			if o.Node = p.Spec.NodeName; o.Node == "" {
				return fmt.Errorf("pod %s is on no node yet", *pod)
			}
		}
		return runQuery(c.Context(), cl, c.OutOrStdout(), "query", "-o", out.String(), "--type", *kind, "--pod", *pod, "--", args[0])
	}
	return c
}

// runQuery prints what the agent's command prints on the first node whose agent can be read, and the node's name to stderr.
func runQuery(ctx context.Context, c *cluster.Cluster, stdout io.Writer, command ...string) error {
	agents, err := c.Agents(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(agents, func(a cluster.Agent) bool { return a.Why == "" })
	if i < 0 {
		return fmt.Errorf("node %s: %s", agents[0].Node, agents[0].Why)
	}
	texts, errs := cluster.ExecAll(ctx, c, agents[i:i+1], func(ctx context.Context, a cluster.Agent) ([]byte, error) {
		return c.Exec(ctx, a.Pod, command...)
	})
	if errs[0] != nil {
		return fmt.Errorf("node %s: %w", agents[i].Node, errs[0])
	}
	c.Note("on node %s:", agents[i].Node)
	_, err = io.WriteString(stdout, cli.Printable(string(texts[0])))
	return err
}
