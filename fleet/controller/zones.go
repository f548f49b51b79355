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

// zonesCommand is the role zones, which runs until its context ends, and the commands that work with a file and without a cluster.
func zonesCommand(hangups <-chan os.Signal, stdout, stderr io.Writer) *cobra.Command {
	o := records.Options{Log: slog.New(slog.NewTextHandler(stderr, nil))}
	const about = "publish a cluster's DNSRecords in the zones that DNSZones name, next to other clusters; " +
		"its commands work with a file, without a cluster"
	c := role{name: "zones", about: about, log: o.Log, flags: func(fs *pflag.FlagSet) {
		fs.StringVar(&o.Namespace, "namespace", "neardns-zones", "`NAME` of the namespace that has the keys' Secrets and the Lease")
		fs.StringVar(&o.ClusterID, "cluster-id", "",
			"`ID` of this cluster in zones, six to twelve of a-z and 0-9; by default, made of the UID of kube-system")
		fs.StringVar(&o.Metrics, "metrics", ":9257", "`ADDRESS` of the metrics")
		fs.StringVar(&o.Health, "health", ":9258", "`ADDRESS` of /healthz")
	}, check: o.Validate, run: func(c *cobra.Command, config *rest.Config) error { return records.Run(c.Context(), config, o) }}.command()
	c.AddCommand(zonesFileCommands(hangups, stdout, stderr)...)
	return c
}
