package main

import (
	"github.com/spf13/cobra"

	"github.com/neardns/neardns/agent/internal/lifecycle"
	"github.com/neardns/neardns/agent/internal/node/plan"
)

func cleanupCommand(e env) *cobra.Command {
	c := &cobra.Command{Use: "cleanup", Short: "remove everything that neardns left on this node"}
	var path string
	configFlag(c, &path)
	fs := c.Flags()
	cniConf := fs.String("cni-conf", "/etc/cni/net.d", "`FOLDER` of the network configurations; the plugin's entry is removed from them")
	linkName := fs.String("link", "", "`NAME` of the link to remove, if it is another than the configuration's, such as nodelocaldns")
	hostRoot := fs.String("host-root", "/", "`FOLDER` where the host's root is mounted: neardns's lines in its etc/hosts and its BPF "+
		"pins in sys/fs/bpf are removed; empty: etc/hosts stays as it is")
	c.RunE = func(c *cobra.Command, _ []string) error {
		conf, err := loadConfig(e, path)
		if err != nil {
			return err
		}
		p, _, _ := plan.Read(conf, e.readFile, "cleanup") // its faults do not matter here
		if *linkName != "" {
			p.Link.Name = *linkName
		}
		return ended(lifecycle.Clean(c.Context(), surroundings(e), p, *cniConf, *hostRoot))
	}
	return c
}
