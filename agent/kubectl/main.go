// Command kubectl-neardns shows the caches of all nodes of a cluster, for example with `kubectl neardns status`. It is a kubectl plugin
// and runs on the user's machine.
//
// status and top read one endpoint of each agent through the API server (pods/proxy). doctor, query and bundle, and top if that endpoint
// lists no pods, run the agent's own program on the nodes (pods/exec). It changes nothing in the cluster.
//
// On failure: a node that does not answer within the timeout is listed with the reason; query fails instead.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/neardns/neardns/agent/kubectl/internal/commands"
	"github.com/neardns/neardns/pkg/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := commands.Run(ctx, version.String(), os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
