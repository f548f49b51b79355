// Command neardns-controller does what a node cannot do, because it needs the API server. It has two roles: placement decides which
// nodes run the cache and, on request, which run kube-dns; zones publishes hosts of this cluster in DNS zones that it shares with other
// clusters.
//
// It is not part of the agent, because the agent runs on every node and does not use the API server. Of two replicas, one is elected as
// leader, and only that one acts.
//
// If it fails, nodes keep their caches, and published records stay in their zones, unless another cluster removes them as those of a dead
// cluster (removal: Remove).
package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/neardns/neardns/fleet/controller/internal/reconcile"
	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/version"
)

func main() {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // before anything else: until then SIGHUP ends the process
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := run(ctx, hangups, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes one command line and returns the exit code of the process.
func run(ctx context.Context, hangups <-chan os.Signal, args []string, stdout, stderr io.Writer) int {
	const name = "neardns-controller"
	root := cli.New(name, "decide which nodes run the cache, and publish hosts in DNS zones shared by clusters", version.String())
	root.AddCommand(placementCommand(stderr), zonesCommand(hangups, stdout, stderr), cli.Version(name, version.String()))
	return cli.Run(ctx, root, args, stdout, stderr)
}

// placementCommand returns the command of the role placement, which runs until its context ends or it fails.
func placementCommand(stderr io.Writer) *cobra.Command {
	o := reconcile.Options{Log: slog.New(slog.NewTextHandler(stderr, nil))}
	const about = "decide which nodes run the cache (NodeDNS), and label the others neardns.io/cache: excluded"
	return role{name: "placement", about: about, log: o.Log, flags: func(fs *pflag.FlagSet) {
		fs.StringVar(&o.Namespace, "namespace", "kube-system", "`NAME` of the namespace with the cache, kube-dns and the leader election's Lease")
		fs.StringVar(&o.Cache, "cache", "neardns", "`NAME` in the label app.kubernetes.io/name of the cache's pods")
		fs.StringVar(&o.KubeDNS, "kube-dns", "kube-dns", "`NAME` of the Service of kube-dns, which serves nodes without a cache")
		fs.StringVar(&o.Workload, "kube-dns-deployment", "coredns", "`NAME` of kube-dns's Deployment, which a NodeDNS's spec.clusterDNS places")
		fs.StringVar(&o.Metrics, "metrics", ":9255", "`ADDRESS` to serve /metrics on")
		fs.StringVar(&o.Health, "health", ":9256", "`ADDRESS` to serve /healthz and /readyz on")
	}, run: func(c *cobra.Command, config *rest.Config) error { return reconcile.Run(c.Context(), config, o) }}.command()
}
