// Command cluster makes this machine into a Kubernetes cluster of its own, in namespaces, with neardns on it: what `make cluster`
// runs. Package node has what that is. `make conformance` runs Kubernetes' own DNS tests on such nodes.
//
// Failure policy: what does not come up is named with the last lines of every program's log, and everything is taken away
// again. A cluster that is up stays until `cluster down`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/neardns/neardns/integration/cluster/node"
)

func main() {
	ran, err := node.Inside(os.Args)
	if !ran {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		err = run(ctx, os.Stdout, os.Args[1:])
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

const usage = "usage: cluster up [-nodes N] [-proxy iptables|nftables] [-runtime containerd16|containerd2] [-bare] | cluster down | " +
	"cluster conformance [-proxy iptables,nftables] [-on bare,neardns,killed] [-runtime containerd16|containerd2]"

func run(ctx context.Context, out io.Writer, args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	switch args[0] {
	case "up":
		var o node.Options
		var bare bool
		var nodes int
		flags := flag.NewFlagSet("up", flag.ExitOnError)
		flags.IntVar(&nodes, "nodes", 1, "number of nodes; the first has the control plane")
		flags.StringVar(&o.Proxy, "proxy", "iptables", "kube-proxy's mode: iptables or nftables")
		flags.StringVar(&o.Runtime, "runtime", "containerd16", "container runtime: containerd16 or containerd2")
		flags.BoolVar(&bare, "bare", false, "without neardns")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		o.Workers = nodes - 1
		var err error
		if o.Bin, err = filepath.Abs("bin"); err != nil {
			return err
		}
		return up(ctx, out, o, bare)
	case "conformance":
		return conform(ctx, out, args[1:])
	case "down":
		if err := node.Remove(); err != nil {
			return err
		}
		_, err := fmt.Fprintln(out, "nothing is left of the cluster")
		return err
	}
	return errors.New(usage)
}
