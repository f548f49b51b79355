package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/internal/cli"
)

// inspector returns an Inspector with this node's configuration: the file's, else that of the running agent, else a detected one. If the
// file has a fault but an agent runs, the Inspector has the agent's configuration and the fault.
func inspector(ctx context.Context, e env, path string) (*inspect.Inspector, error) {
	conf, fault, err := inspect.InEffect(ctx, path, e.Env)
	if err != nil {
		return nil, badConfig(err)
	}
	return &inspect.Inspector{Conf: conf, Fault: fault, ReadFile: e.ReadFile}, nil
}

func statusCommand(e env) *cobra.Command {
	c := &cobra.Command{Use: "status", Short: "show whether the agent serves, its leases, faults, upstreams and pods"}
	path := configFlag(c)
	out := cli.OutputFlag(c, "wide")
	c.RunE = func(c *cobra.Command, _ []string) error {
		in, err := inspector(c.Context(), e, *path)
		if err != nil {
			return err
		}
		s, err := in.Status(c.Context())
		if err != nil {
			return err
		}
		return out.Report(e.Stdout, s, func() string { return s.Text(out.String() == "wide") }, s.Good())
	}
	return c
}
