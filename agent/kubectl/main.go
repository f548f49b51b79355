// Command kubectl-neardns shows the caches of a whole cluster: `kubectl neardns status`. It is a plugin of kubectl, and runs on the same
// machine.
//
// status and top read one endpoint of each agent through the API server (pods/proxy); doctor, query and bundle run the agent's own program
// on the nodes (pods/exec). It changes nothing.
//
// On failure: a node that does not answer within the timeout is listed with the reason, and does not delay the others.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	const name = "kubectl-neardns"
	root := cli.New(name, "the DNS caches of all nodes of a cluster", version.String())
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl neardns"}
	o := new(options)
	o.bind(root.PersistentFlags())
	root.AddCommand(statusCommand(o), topCommand(o), doctorCommand(o), queryCommand(o), bundleCommand(o), cli.Version(name, version.String()))
	return cli.Run(ctx, root, args, stdout, stderr)
}
