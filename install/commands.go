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
	in := install{folders: folders{printer: printer{stdout}}}
	c := &cobra.Command{Use: "install",
		Short: "put the plugin on this node, and its entry into the conflist that the runtime uses (or --file)"}
	set := c.Flags()
	in.sourceFlags(set)
	set.Bool("force", false, "no effect: install refuses no node any more")
	_ = set.MarkDeprecated("force", "it has no effect")
	set.StringVar(&in.persistDir, "persist-dir", nodestate.DefaultPersistDir, "the agent's persistent `FOLDER` (NodeConfig's persistDir); "+
		"install prints whether the agent has recorded there that kube-dns can answer without it")
	in.dryRunFlag(set)
	set.StringVar(&in.kubeletTo, "state-dir", "", "the agent's state `FOLDER` (NodeConfig's stateDir), where install writes "+
		"the DNS settings from the kubelet's configuration, which the agent cannot read; empty, or with --entry: not written")
	set.DurationVar(&in.wait, "wait", 0, "how long to wait for a network configuration to which the entry can be added, "+
		"for example 30s; 0: not at all")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := in.validateSource(); err != nil {
			return err
		}
		return in.run(c.Context())
	}
	return c
}

func watchCommand(stdout io.Writer) *cobra.Command {
	w := watch{install: install{folders: folders{printer: printer{stdout}}}, now: time.Now}
	c := &cobra.Command{Use: "watch", Short: "keep the plugin and its conflist entry on this node, and put back what is removed"}
	set := c.Flags()
	w.sourceFlags(set)
	set.DurationVar(&w.poll, "poll", 30*time.Second, "time between checks of plugin, conflist entry and (with --state-dir) host rules, if "+
		"no change is seen")
	set.StringVar(&w.stateDir, "state-dir", "", "the agent's state `FOLDER` (NodeConfig's stateDir), where the watch writes "+
		"its state for the agent's metrics and reads the record of the host rules that it restores; empty: neither")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := w.validateSource(); err != nil {
			return err
		}
		if w.poll < time.Second {
			return cli.Usagef("--poll %s: at least 1s", w.poll)
		}
		return w.run(c.Context())
	}
	return c
}

func checkCommand(stdout io.Writer) *cobra.Command {
	in := install{folders: folders{printer: printer{stdout}}}
	c := &cobra.Command{Use: "check", Short: "report whether the plugin and its conflist entry are on this node"}
	in.sourceFlags(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := in.validateSource(); err != nil {
			return err
		}
		return in.check(c.Context())
	}
	return c
}

func uninstallCommand(stdout io.Writer) *cobra.Command {
	un := uninstall{folders: folders{printer: printer{stdout}}}
	c := &cobra.Command{Use: "uninstall", Short: "remove the plugin's entry from every conflist on this node (or only --file)"}
	set := c.Flags()
	un.flags(set)
	un.dryRunFlag(set)
	set.BoolVar(&un.removeBinary, "remove-binary", false, "also remove the plugin's binary, unless pods run that were started with it")
	set.StringVar(&un.cache, "cni-cache", "/var/lib/cni", "`FOLDER` with libcni's cache, where --remove-binary looks for pods that were "+
		"started with the plugin; empty: remove it without this check")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := un.validate(); err != nil {
			return err
		}
		return un.run(c.Context())
	}
	return c
}

// stayCommand runs in the uninstall DaemonSet's pod after its work is done: the pod would be restarted if its process ended.
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
	f := follower{printer: printer{stdout}}
	c := &cobra.Command{Use: "follow",
		Short: "copy the node's resolv.conf and certificate authorities to a folder for the agent, again whenever they change"}
	set := c.Flags()
	set.StringVar(&f.from, "from", "", "`FOLDER` with the host's /etc mounted at etc, and the targets of links in it at their paths")
	set.StringVar(&f.to, "to", "", "`FOLDER` for the agent's copies of the node's resolv.conf and certificate authorities")
	set.BoolVar(&f.once, "once", false, "copy once and exit")
	set.DurationVar(&f.poll, "poll", 30*time.Second, "time between comparisons of copies and sources if no file change is seen")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if f.from == "" || f.to == "" {
			return cli.Usagef("name --from and --to")
		}
		return f.run(c.Context())
	}
	return c
}
