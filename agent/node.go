package main

import (
	"context"

	"github.com/neardns/neardns/agent/internal/lifecycle"
	"github.com/neardns/neardns/pkg/attached"
)

// surroundings are what a role sees of e.
func surroundings(e env) lifecycle.Env {
	return lifecycle.Env{Stdout: e.stdout, Stderr: e.stderr, LookupEnv: e.lookupEnv, ReadFile: e.readFile, Hangups: e.hangups,
		Version: e.version}
}

// runNode is the role `node`, which runs until ctx ends.
func runNode(ctx context.Context, e env, args []string) error {
	fs := flags("node")
	path := configFlag(fs)
	takeOver := fs.Bool("take-over", false, "take over from the agent that runs on this node, whichever is newer")
	podDir := fs.String("pod-dir", "", "`FOLDER` that lives as long as this agent's pod and is its own: "+
		"it takes over from the agent of an older pod, and its status socket is there")
	cache := fs.String("cni-cache", attached.DefaultRoot, "libcni's cache, in `FOLDER`: pods in it that run already are steered, too (adoptPods)")
	if err := parse(e, fs, args); err != nil {
		return err
	}
	return lifecycle.Node(ctx, surroundings(e), lifecycle.Options{Config: *path, TakeOver: *takeOver, PodDir: *podDir, Cache: *cache})
}
