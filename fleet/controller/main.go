// Command neardns-controller does for a cluster what no node can do for itself. Its role placement decides which nodes run the cache. Its
// role zones publishes hosts of the cluster in DNS zones that it shares with other clusters.
//
// It queries the API server, and so is not part of the agent, which runs on every node and does not use the API server. Two replicas
// elect a leader; only the leader acts.
//
// If it fails, nodes keep their caches and published records stay in their zones.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/rest"

	"github.com/neardns/neardns/fleet/controller/internal/reconcile"
	"github.com/neardns/neardns/pkg/version"
)

// Exit codes, the same as the agent's.
const (
	exitGood   = 0
	exitFailed = 1
	exitConfig = 2
)

func main() {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // first, because until then the signal ends the process
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := run(ctx, hangups, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, hangups <-chan os.Signal, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		usage(stderr)
		return exitConfig
	}
	switch args[0] {
	case "placement":
		return runPlacement(ctx, args[1:], stdout, stderr)
	case "zones":
		if len(args) > 1 && isZonesFile(args[1]) {
			return runZonesFile(ctx, hangups, args[1:], stdout, stderr)
		}
		return runZones(ctx, args[1:], stdout, stderr)
	case "version", "--version":
		_, _ = fmt.Fprintln(stdout, "neardns-controller", version.String())
		return exitGood
	case "help", "-h", "--help":
		usage(stdout)
		return exitGood
	}
	_, _ = fmt.Fprintf(stderr, "neardns-controller: there is no command %q; `neardns-controller help` lists them\n", args[0])
	return exitConfig
}

func usage(w io.Writer) {
	_, _ = fmt.Fprintf(w, `neardns-controller %s: what a cluster's caches need of the API server

  placement [--namespace NAME] [--cache NAME] [--kube-dns NAME] [--metrics ADDRESS] [--health ADDRESS] [--kubeconfig FILE]
      decide which nodes run the cache (NodeDNS), and label the others neardns.io/cache: excluded
  zones [--namespace NAME] [--cluster-id ID] [--metrics ADDRESS] [--health ADDRESS] [--kubeconfig FILE]
      publish what DNSRecords say in the zones that DNSZones name, beside other clusters
%s  version
      print the version

Exit codes: 0 good, 1 failed or no longer leading, 2 bad usage.
`, version.String(), zoneCommands)
}

// runPlacement decides until ctx ends.
func runPlacement(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o := reconcile.Options{Log: slog.New(slog.NewTextHandler(stderr, nil))}
	return role{name: "placement", log: o.Log, flags: func(fs *flag.FlagSet) {
		fs.StringVar(&o.Namespace, "namespace", "kube-system", "`NAME` of the namespace that has the cache, kube-dns and the Lease")
		fs.StringVar(&o.Cache, "cache", "neardns", "`NAME` of the cache: its pods' label app.kubernetes.io/name")
		fs.StringVar(&o.KubeDNS, "kube-dns", "kube-dns", "`NAME` of the Service that nodes without a cache ask")
		fs.StringVar(&o.Metrics, "metrics", ":9255", "`ADDRESS` of the metrics")
		fs.StringVar(&o.Health, "health", ":9256", "`ADDRESS` of /healthz")
	}, run: func(config *rest.Config) error { return reconcile.Run(ctx, config, o) }}.start(args, stdout, stderr)
}
