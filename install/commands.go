package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/neardns/neardns/pkg/nodestate"
)

func runInstall(ctx context.Context, args []string, stdout io.Writer) error {
	in := install{out: stdout}
	set := flag.NewFlagSet("neardns-install install", flag.ContinueOnError)
	in.sourceFlags(set)
	set.Bool("force", false, "deprecated, without effect: no node is refused")
	set.StringVar(&in.persistDir, "persist-dir", nodestate.DefaultPersistDir, "`folder` of the agent (NodeConfig's persistDir) with the "+
		"record of its fallback check, which install prints")
	in.dryRunFlag(set)
	set.StringVar(&in.kubeletTo, "state-dir", "", "`folder` of the agent (NodeConfig's stateDir) for a copy of the settings "+
		"that are detected from the kubelet's configuration, which the agent cannot read; empty: no copy")
	set.DurationVar(&in.wait, "wait", 0, "how long to wait for a network that is not configured yet")
	if err := in.parseSource(set, args, stdout); err != nil {
		return err
	}
	return in.run(ctx)
}

func runWatch(ctx context.Context, args []string, stdout io.Writer) error {
	w := watch{install: install{out: stdout}, now: time.Now}
	set := flag.NewFlagSet("neardns-install watch", flag.ContinueOnError)
	w.sourceFlags(set)
	set.DurationVar(&w.poll, "poll", 30*time.Second, "period of checks without an event")
	set.StringVar(&w.stateDir, "state-dir", "", "`folder` of the agent (NodeConfig's stateDir) for the watch's state; "+
		"empty: none is written")
	if err := w.parseSource(set, args, stdout); err != nil {
		return err
	}
	if w.poll < time.Second {
		return fmt.Errorf("%w: --poll %s: at least 1s", errConfig, w.poll)
	}
	return w.run(ctx)
}

func runCheck(ctx context.Context, args []string, stdout io.Writer) error {
	in := install{out: stdout}
	set := flag.NewFlagSet("neardns-install check", flag.ContinueOnError)
	in.sourceFlags(set)
	if err := in.parseSource(set, args, stdout); err != nil {
		return err
	}
	return in.check(ctx)
}

func runUninstall(ctx context.Context, args []string, stdout io.Writer) error {
	un := uninstall{out: stdout}
	set := flag.NewFlagSet("neardns-install uninstall", flag.ContinueOnError)
	un.flags(set)
	un.dryRunFlag(set)
	set.BoolVar(&un.removeBinary, "remove-binary", false, "also remove the plugin's binary, unless pods run that were made with it")
	set.StringVar(&un.cache, "cni-cache", "/var/lib/cni", "`folder` where the runtime keeps the list that each pod was made with, "+
		"for --remove-binary; empty: do not check")
	if err := un.parse(set, args, stdout); err != nil {
		return err
	}
	return un.run(ctx)
}

// runStay waits for its end. A DaemonSet's pod has to keep running after its work is done.
func runStay(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) > 0 {
		return fmt.Errorf("%w: stay takes no arguments", errConfig)
	}
	_, _ = fmt.Fprintln(stdout, "neardns is removed from this node; waiting for the end of this pod")
	<-ctx.Done()
	return nil
}

func runFollow(ctx context.Context, args []string, stdout io.Writer) error {
	f := follower{out: stdout}
	set := flag.NewFlagSet("neardns-install follow", flag.ContinueOnError)
	set.StringVar(&f.from, "from", "", "`folder` of the host's root, with its etc and what that links to")
	set.StringVar(&f.to, "to", "", "`folder` of the copies")
	set.BoolVar(&f.once, "once", false, "copy once and exit")
	set.DurationVar(&f.poll, "poll", 30*time.Second, "period of checks without an event")
	if err := new(folders).parse(set, args, stdout); err != nil {
		return err
	}
	if f.from == "" || f.to == "" {
		return fmt.Errorf("%w: name --from and --to", errConfig)
	}
	return f.run(ctx)
}
