package main

import (
	"github.com/spf13/cobra"

	"github.com/neardns/neardns/agent/internal/lifecycle"
)

// hostsCommand returns the command `hosts`, which runs that role until its context ends.
func hostsCommand(e env) *cobra.Command {
	c := &cobra.Command{Use: "hosts", Short: "keep Service names in the node's /etc/hosts (the command of the install/hosts DaemonSet)"}
	path := configFlag(c)
	hostRoot := c.Flags().String("host-root", "/", "`FOLDER` where the host's root is mounted; only etc/hosts in it is written")
	c.RunE = func(c *cobra.Command, _ []string) error {
		return ended(lifecycle.Hosts(c.Context(), e, *path, *hostRoot))
	}
	return c
}
