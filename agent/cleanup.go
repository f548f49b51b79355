package main

import (
	"cmp"

	"github.com/spf13/cobra"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/lifecycle"
	"github.com/neardns/neardns/agent/internal/node/plan"
)

func cleanupCommand(e env) *cobra.Command {
	c := &cobra.Command{Use: "cleanup", Short: "remove everything that neardns left on this node"}
	path, fs := configFlag(c), c.Flags()
	cniConf := fs.String("cni-conf", "/etc/cni/net.d", "`FOLDER` of the CNI network configurations, from which the plugin's entry is removed")
	linkName := fs.String("link", "", "`NAME` of the network link to remove; default: link.name of the configuration. Example: nodelocaldns")
	hostRoot := fs.String("host-root", "/", "`FOLDER` where the host's root is mounted: neardns's lines in its etc/hosts and its BPF "+
		"pins in sys/fs/bpf are removed; empty: etc/hosts stays as it is")
	c.RunE = func(c *cobra.Command, _ []string) error {
		conf, err := config.Read(*path, e.Env)
		if err != nil {
			return badConfig(err)
		}
		folders := plan.Folders{State: conf.StateDir, Persist: conf.PersistDir}
		return ended(lifecycle.Clean(c.Context(), e, folders, cmp.Or(*linkName, conf.Link.Name), *cniConf, *hostRoot))
	}
	return c
}
