package main

import (
	"context"
	"path/filepath"

	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/pkg/nodestate"
)

// runReady reports whether one agent is ready, or alive: that of a pod's folder, or else the active one. Two may run at the same time during
// a handover, so an address that both share could reach the wrong one.
func runReady(ctx context.Context, e env, args []string) error {
	fs := flags("ready")
	path := configFlag(fs)
	podDir := fs.String("pod-dir", "", "`FOLDER` of the agent's pod, as given to the agent")
	alive := fs.Bool("alive", false, "report only whether it is alive: it runs, and so do its loops")
	if err := parse(e, fs, args); err != nil {
		return err
	}
	dir := *podDir
	if dir == "" {
		conf, err := loadConfig(e, *path)
		if err != nil {
			return err
		}
		dir = conf.StateDir
	}
	about := "/readyz"
	if *alive {
		about = "/healthz"
	}
	text, good, err := inspect.Ask(ctx, filepath.Join(dir, nodestate.AgentSocketName), about)
	if err != nil {
		return &exitError{code: exitDegraded, err: err}
	}
	if _, err = e.stdout.Write(text); err == nil && !good {
		err = &exitError{code: exitDegraded}
	}
	return err
}
