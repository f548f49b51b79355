package main

import (
	"context"
	"flag"
	"io"
	"log/slog"

	"k8s.io/client-go/rest"

	"github.com/neardns/neardns/fleet/controller/internal/records"
)

// runZones runs the role zones until ctx ends.
func runZones(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o := records.Options{Log: slog.New(slog.NewTextHandler(stderr, nil))}
	return role{name: "zones", log: o.Log, flags: func(fs *flag.FlagSet) {
		fs.StringVar(&o.Namespace, "namespace", "neardns-zones", "`NAME` of the namespace that has the keys' Secrets and the Lease")
		fs.StringVar(&o.ClusterID, "cluster-id", "", "`ID` of this cluster in zones, six to twelve of a-z and 0-9; by default, made of the UID of kube-system")
		fs.StringVar(&o.Metrics, "metrics", ":9257", "`ADDRESS` of the metrics")
		fs.StringVar(&o.Health, "health", ":9258", "`ADDRESS` of /healthz")
	}, check: o.Validate, run: func(config *rest.Config) error { return records.Run(ctx, config, o) }}.start(args, stdout, stderr)
}
