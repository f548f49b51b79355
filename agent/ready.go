package main

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/nodestate"
)

func readyCommand(e env) *cobra.Command {
	c := &cobra.Command{Use: "ready", Short: "report whether the agent serves and has its leases, for the kubelet's probes"}
	path := configFlag(c)
	podDir := c.Flags().String("pod-dir", "", "`FOLDER` that the agent got as its --pod-dir; default: check the active agent")
	alive := c.Flags().Bool("alive", false, "report only whether the agent is alive: the process answers and none of its loops hangs")
	c.RunE = func(c *cobra.Command, _ []string) error { return ready(c.Context(), e, *path, *podDir, *alive) }
	return c
}

// ready reports whether one agent is ready or alive: the agent of the pod with folder dir, or the active agent if dir is empty. It uses
// that agent's socket, because during a handover two agents run, and an address that both serve could reach the wrong one.
func ready(ctx context.Context, e env, path, dir string, alive bool) error {
	if dir == "" {
		dir = config.StateDir(path, e.Env) // also of a file with a fault, because the agent serves with the old one
	}
	about := "/readyz"
	if alive {
		about = "/healthz"
	}
	text, good, err := inspect.Request(ctx, "unix", filepath.Join(dir, nodestate.AgentSocketName), about)
	if err != nil {
		return &cli.ExitError{Code: cli.Degraded, Err: err}
	}
	if _, err = e.Stdout.Write(text); err == nil && !good {
		err = &cli.ExitError{Code: cli.Degraded}
	}
	return err
}
