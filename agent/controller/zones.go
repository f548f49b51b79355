package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/neardns/neardns/agent/controller/internal/records"
)

// runZones publishes until ctx ends.
func runZones(ctx context.Context, args []string, stderr io.Writer) int {
	fs := flag.NewFlagSet("zones", flag.ContinueOnError)
	fs.SetOutput(stderr)
	o := records.Options{Log: slog.New(slog.NewTextHandler(stderr, nil))}
	fs.StringVar(&o.Namespace, "namespace", "neardns-zones", "`NAME` of the namespace that has the keys' Secrets and the Lease")
	fs.StringVar(&o.ClusterID, "cluster-id", "", "`ID` of this cluster in zones, six to twelve of a-z and 0-9; by default, made of the UID of kube-system")
	fs.StringVar(&o.Metrics, "metrics", ":9257", "`ADDRESS` of the metrics")
	fs.StringVar(&o.Health, "health", ":9258", "`ADDRESS` of /healthz")
	kubeconfig := fs.String("kubeconfig", "", "`FILE` that leads to the API server; by default, the pod's service account does")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return exitGood
	} else if err != nil {
		return exitConfig
	}
	fail := func(format string, args ...any) int {
		_, _ = fmt.Fprintf(stderr, "neardns-controller zones: "+format+"\n", args...)
		return exitConfig
	}
	if fs.NArg() > 0 {
		return fail("unexpected argument %q", fs.Arg(0))
	}
	if err := o.Validate(); err != nil {
		return fail("%v", err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return fail("%v", err)
	}
	if err := records.Run(ctx, config, o); err != nil {
		o.Log.Error("zones ends", "error", err)
		return exitFailed
	}
	return exitGood
}
