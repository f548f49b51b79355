// Package commands implements the commands of `kubectl neardns`. query reads from one node; the others read from all nodes, unless --node
// names one.
//
// On failure: a node that cannot be read is listed with the reason, and the command exits with code 3 (degraded). query fails instead.
package commands

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/neardns/neardns/agent/kubectl/internal/cluster"
	"github.com/neardns/neardns/internal/cli"
)

// Run executes one command line and returns the exit code.
func Run(ctx context.Context, version string, args []string, stdout, stderr io.Writer) int {
	const name = "kubectl-neardns"
	root := cli.New(name, "the DNS caches of all nodes of a cluster", version)
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl neardns"}
	o := new(cluster.Options)
	o.Bind(root.PersistentFlags())
	root.AddCommand(statusCommand(o), topCommand(o), doctorCommand(o), queryCommand(o), bundleCommand(o), cli.Version(name, version))
	return cli.Run(ctx, root, args, stdout, stderr)
}
