// Command neardns-edge is an authoritative DNS server for zones that several clusters share. For a host with the strategy LoadBalanced, it
// chooses a cluster for each client by region, health and weight, and answers with that cluster's addresses.
//
// It guarantees that the addresses in its answers are those of the zone (details: package authoritative). It writes nothing but its copies
// of the zones to disk, and uses neither an API server nor the agent.
//
// If a primary does not answer, it serves its last copy of the zone. If a changed configuration is invalid, it keeps the previous one.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/internal/process"
	"github.com/neardns/neardns/pkg/version"
)

// env is the program's environment.
type env struct {
	stdout, stderr io.Writer
	lookupEnv      func(string) (string, bool)
	readFile       func(path string) ([]byte, error)
	hangups        func(ctx context.Context) <-chan os.Signal
}

// configError is an error in the configuration file, in its geo.database or in its healthChecks.caFile.
type configError struct{ error }

func (e configError) Unwrap() error { return e.error }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := run(ctx, env{os.Stdout, os.Stderr, os.LookupEnv, os.ReadFile, process.Hangups}, os.Args[1:])
	stop()
	os.Exit(code)
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, e env, args []string) int {
	root := cli.New("neardns-edge", "zones that clusters share, answered by geo, health and weight", version.String())
	path := root.Flags().String("config", "/etc/neardns/edgeconfig.yaml", "`FILE` with an EdgeConfig")
	check := root.Flags().Bool("check", false, "check the configuration, its geo.database and its healthChecks.caFile, and exit")
	root.RunE = func(c *cobra.Command, _ []string) (err error) {
		if !*check {
			err = serve(c.Context(), e, *path)
		} else if err = checkConfig(e, *path); err == nil {
			_, err = fmt.Fprintln(e.stdout, *path+": good")
		}
		if errors.As(err, new(configError)) {
			return &cli.ExitError{Code: cli.Config, Err: err, Bare: true}
		}
		return err
	}
	root.AddCommand(cli.Version("neardns-edge", version.String()))
	return cli.Run(ctx, root, args, e.stdout, e.stderr)
}
