package main

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/nodestate"
)

func readyCommand(e env) *cobra.Command {
	c := &cobra.Command{Use: "ready", Short: "report whether the agent serves with its leases, or at least runs, for the kubelet's probes"}
	var path string
	configFlag(c, &path)
	podDir := c.Flags().String("pod-dir", "", "`FOLDER` of the agent's pod, as given to the agent")
	alive := c.Flags().Bool("alive", false, "report only whether it is alive: it runs, and so do its loops")
	c.RunE = func(c *cobra.Command, _ []string) error { return ready(c.Context(), e, path, *podDir, *alive) }
	return c
}

// ready reports whether one agent is ready, or alive: that of a pod's folder, or else the active one. Two may run at the same time during
// a handover, so an address that both share could reach the wrong one.
func ready(ctx context.Context, e env, path, dir string, alive bool) error {
	if dir == "" {
		conf, err := loadConfig(e, path)
		if err != nil {
			return err
		}
		dir = conf.StateDir
	}
	about := "/readyz"
	if alive {
		about = "/healthz"
	}
	text, good, err := inspect.Request(ctx, filepath.Join(dir, nodestate.AgentSocketName), about)
	if err != nil {
		return &cli.ExitError{Code: cli.Degraded, Err: err}
	}
	if _, err = e.stdout.Write(text); err == nil && !good {
		err = &cli.ExitError{Code: cli.Degraded}
	}
	return err
}
