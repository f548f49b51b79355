package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/nodestate"
)

func installCommand(stdout io.Writer) *cobra.Command {
	in := install{out: stdout}
	c := &cobra.Command{Use: "install",
		Short: "put the plugin on this node, and its entry into the network configuration that the runtime uses"}
	set := c.Flags()
	in.sourceFlags(set)
	set.Bool("force", false, "no node is refused")
	_ = set.MarkDeprecated("force", "it has no effect")
	set.StringVar(&in.persistDir, "persist-dir", nodestate.DefaultPersistDir, "`FOLDER` of the agent (NodeConfig's persistDir) with the "+
		"record of its fallback check, which install prints")
	in.dryRunFlag(set)
	set.StringVar(&in.kubeletTo, "state-dir", "", "`FOLDER` of the agent (NodeConfig's stateDir) for a copy of the settings "+
		"that are detected from the kubelet's configuration, which the agent cannot read; empty: no copy")
	set.DurationVar(&in.wait, "wait", 0, "how long to wait for a network that is not configured yet, such as 30s")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := in.validateSource(); err != nil {
			return err
		}
		return coded(in.run(c.Context()))
	}
	return c
}

func watchCommand(stdout io.Writer) *cobra.Command {
	w := watch{install: install{out: stdout}, now: time.Now}
	c := &cobra.Command{Use: "watch", Short: "keep the plugin and its entry there"}
	set := c.Flags()
	w.sourceFlags(set)
	set.DurationVar(&w.poll, "poll", 30*time.Second, "period of checks without an event")
	set.StringVar(&w.stateDir, "state-dir", "", "`FOLDER` of the agent (NodeConfig's stateDir) for the watch's state; "+
		"empty: none is written")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := w.validateSource(); err != nil {
			return err
		}
		if w.poll < time.Second {
			return cli.Usagef("--poll %s: at least 1s", w.poll)
		}
		return coded(w.run(c.Context()))
	}
	return c
}

func checkCommand(stdout io.Writer) *cobra.Command {
	in := install{out: stdout}
	c := &cobra.Command{Use: "check", Short: "report whether the plugin and its entry are there"}
	in.sourceFlags(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := in.validateSource(); err != nil {
			return err
		}
		return coded(in.check(c.Context()))
	}
	return c
}

func uninstallCommand(stdout io.Writer) *cobra.Command {
	un := uninstall{out: stdout}
	c := &cobra.Command{Use: "uninstall", Short: "remove the entry from the network configuration"}
	set := c.Flags()
	un.flags(set)
	un.dryRunFlag(set)
	set.BoolVar(&un.removeBinary, "remove-binary", false, "also remove the plugin's binary, unless pods run that were made with it")
	set.StringVar(&un.cache, "cni-cache", "/var/lib/cni", "`FOLDER` where the runtime keeps the configuration that each pod was made with, "+
		"for --remove-binary; empty: do not check")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := un.validate(); err != nil {
			return err
		}
		return coded(un.run(c.Context()))
	}
	return c
}

// stayCommand waits to be ended. A DaemonSet's pod has to keep running after its work is done.
func stayCommand(stdout io.Writer) *cobra.Command {
	c := &cobra.Command{Use: "stay", Short: "do nothing until SIGTERM, so that the pod stays ready"}
	c.RunE = func(c *cobra.Command, _ []string) error {
		_, _ = fmt.Fprintln(stdout, "neardns is removed from this node; waiting for the end of this pod")
		<-c.Context().Done()
		return nil
	}
	return c
}

func followCommand(stdout io.Writer) *cobra.Command {
	f := follower{out: stdout}
	c := &cobra.Command{Use: "follow",
		Short: "copy the node's resolv.conf and certificate authorities to a folder for the agent, and each change of them"}
	set := c.Flags()
	set.StringVar(&f.from, "from", "", "`FOLDER` of the host's root, with its etc and what that links to")
	set.StringVar(&f.to, "to", "", "`FOLDER` of the copies")
	set.BoolVar(&f.once, "once", false, "copy once and exit")
	set.DurationVar(&f.poll, "poll", 30*time.Second, "period of checks without an event")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if f.from == "" || f.to == "" {
			return cli.Usagef("name --from and --to")
		}
		return coded(f.run(c.Context()))
	}
	return c
}
