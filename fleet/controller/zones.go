package main

import (
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/neardns/neardns/fleet/controller/internal/records"
)

// zonesCommand returns the command of the role zones, which runs until its context ends or it fails. Its subcommands work with a file
// instead of a Kubernetes cluster.
func zonesCommand(hangups <-chan os.Signal, stdout, stderr io.Writer) *cobra.Command {
	o := records.Options{Log: slog.New(slog.NewTextHandler(stderr, nil))}
	const about = "publish a cluster's DNSRecords in the zones that DNSZones name, next to other clusters; " +
		"its commands work with a file, without a cluster"
	c := role{name: "zones", about: about, log: o.Log, flags: func(fs *pflag.FlagSet) {
		fs.StringVar(&o.Namespace, "namespace", "neardns-zones", "`NAME` of the namespace with the keys' Secrets and the leader election's Lease")
		fs.StringVar(&o.ClusterID, "cluster-id", "",
			"`ID` of this cluster in shared zones, 6 to 12 of a-z and 0-9; default: from the UID of namespace kube-system")
		fs.StringVar(&o.Metrics, "metrics", ":9257", "`ADDRESS` to serve /metrics on")
		fs.StringVar(&o.Health, "health", ":9258", "`ADDRESS` to serve /healthz and /readyz on")
	}, check: o.Validate, run: func(c *cobra.Command, config *rest.Config) error { return records.Run(c.Context(), config, o) }}.command()
	c.AddCommand(zonesFileCommands(hangups, stdout, stderr)...)
	return c
}
