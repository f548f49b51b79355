package main

import (
	"github.com/spf13/cobra"

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
		conf, err := loadConfig(e, *path)
		if err != nil {
			return err
		}
		p, _, _ := plan.Read(conf, e.ReadFile, "cleanup") // cleanup needs no upstreams, so an error in their files does not matter
		if *linkName != "" {
			p.Link.Name = *linkName
		}
		return ended(lifecycle.Clean(c.Context(), e, p, *cniConf, *hostRoot))
	}
	return c
}
