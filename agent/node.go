package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/agent/internal/lifecycle"
	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/attached"
)

// surroundings are what a role sees of e.
func surroundings(e env) lifecycle.Env {
	return lifecycle.Env{Stdout: e.stdout, Stderr: e.stderr, LookupEnv: e.lookupEnv, ReadFile: e.readFile, Hangups: e.hangups,
		Version: e.version}
}

// checkCapability fails before anything is changed if the process may not configure the network.
func checkCapability() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil || sets[0].Effective&(1<<unix.CAP_NET_ADMIN) != 0 {
		return nil //nolint:nilerr // what it then may not do, it names
	}
	return errors.New("operation not permitted: run it as root with CAP_NET_ADMIN " +
		"and the other capabilities of the DaemonSet (agent/README.md)")
}

// nodeCommand is the role `node`, which runs until its context ends.
func nodeCommand(e env) *cobra.Command {
	c := &cobra.Command{Use: "node", Short: "run this node's cache (what the DaemonSet runs)"}
	var o lifecycle.Options
	configFlag(c, &o.Config)
	fs := c.Flags()
	fs.BoolVar(&o.TakeOver, "take-over", false, "take over from the running agent even if it is newer than this one")
	fs.StringVar(&o.PodDir, "pod-dir", "",
		"`FOLDER` that lives as long as this agent's pod: it takes over from an older pod's agent, and its status socket is there")
	fs.StringVar(&o.Cache, "cni-cache", attached.DefaultRoot, "`FOLDER` of libcni's cache: running pods in it are steered, too (adoptPods)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if o.PodDir != "" {
			// The wrong folder means the wrong mounts, and so perhaps the wrong network namespace: nothing is changed.
			if dir, err := os.Stat(o.PodDir); err != nil {
				return cli.Usage(fmt.Errorf("--pod-dir: %w: mount the folder, or leave the flag out", err))
			} else if !dir.IsDir() {
				return cli.Usagef("--pod-dir: %s is no folder", o.PodDir)
			}
		}
		if err := checkCapability(); err != nil {
			return err
		}
		return ended(lifecycle.Node(c.Context(), surroundings(e), o))
	}
	return c
}
