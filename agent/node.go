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

// checkCapability returns an error if the process lacks CAP_NET_ADMIN, so that the agent fails before it changes anything.
func checkCapability() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil || sets[0].Effective&(1<<unix.CAP_NET_ADMIN) != 0 {
		return nil //nolint:nilerr // if the capabilities cannot be read, a later step names what is not permitted
	}
	return errors.New("operation not permitted: run it as root with CAP_NET_ADMIN " +
		"and the other capabilities of the DaemonSet (agent/README.md)")
}

// nodeCommand returns the command `node`, which runs that role until its context ends.
func nodeCommand(e env) *cobra.Command {
	c := &cobra.Command{Use: "node", Short: "run the agent: this node's DNS cache (the command of the DaemonSet)"}
	var o lifecycle.Options
	path, fs := configFlag(c), c.Flags()
	fs.BoolVar(&o.TakeOver, "take-over", false, "take over from the running agent even if it is newer than this one")
	fs.StringVar(&o.PodDir, "pod-dir", "",
		"`FOLDER` that exists as long as this agent's pod: take over from an older pod's agent, and serve a status socket there")
	fs.StringVar(&o.Cache, "cni-cache", attached.DefaultRoot, "`FOLDER` of libcni's cache, which lists running pods (for adoptPods)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if o.PodDir != "" {
			// A wrong folder means wrong mounts, and perhaps the wrong network namespace: change nothing.
			if dir, err := os.Stat(o.PodDir); err != nil {
				return cli.Usage(fmt.Errorf("--pod-dir: %w: mount the folder, or leave the flag out", err))
			} else if !dir.IsDir() {
				return cli.Usagef("--pod-dir: %s is no folder", o.PodDir)
			}
		}
		if err := checkCapability(); err != nil {
			return err
		}
		o.Config = *path
		return ended(lifecycle.Node(c.Context(), e, o))
	}
	return c
}
