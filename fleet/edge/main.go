// Command neardns-edge is an authoritative DNS server for zones that several clusters share. It chooses a cluster for each client by
// region, health and weight, and answers with that cluster's addresses.
//
// It guarantees that its answers are parts of what a plain server of the zone answers. It writes nothing but its copies of the zones,
// queries no API server and needs no agent.
//
// If a primary does not answer, it serves the last copy. If a changed configuration is invalid, the previous one stays in effect.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/neardns/neardns/internal/process"
	"github.com/neardns/neardns/pkg/version"
)

// Exit codes, the same as the agent's.
const (
	exitGood   = 0
	exitFailed = 1
	exitConfig = 2
)

// env is the program's environment.
type env struct {
	stdout, stderr io.Writer
	lookupEnv      func(string) (string, bool)
	readFile       func(path string) ([]byte, error)
	hangups        func(ctx context.Context) <-chan struct{}
}

// configError is an error in the configuration or in a file that it names. Nothing was changed.
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
	if len(args) == 1 && (args[0] == "version" || args[0] == "--version") {
		_, _ = fmt.Fprintln(e.stdout, "neardns-edge", version.String())
		return exitGood
	}
	fs := flag.NewFlagSet("neardns-edge", flag.ContinueOnError)
	path := fs.String("config", "/etc/neardns/edgeconfig.yaml", "`FILE` with an EdgeConfig")
	check := fs.Bool("check", false, "check the configuration and the files that it names, and end")
	var help bytes.Buffer
	fs.SetOutput(&help)
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		_, _ = fmt.Fprintf(e.stdout, "neardns-edge %s: zones that clusters share, answered by geo, health and weight\n\n%s", version.String(), help.String())
		return exitGood
	case err != nil:
		_, _ = help.WriteTo(e.stderr)
		return exitConfig
	case fs.NArg() > 0:
		_, _ = fmt.Fprintf(e.stderr, "neardns-edge: unexpected argument %q\n", fs.Arg(0))
		return exitConfig
	}
	var err error
	if *check {
		if err = checkConfig(e, *path); err == nil {
			_, err = fmt.Fprintln(e.stdout, *path+": good")
		}
	} else {
		err = serve(ctx, e, *path)
	}
	if err == nil {
		return exitGood
	}
	_, _ = fmt.Fprintf(e.stderr, "neardns-edge: %v\n", err)
	if errors.As(err, new(configError)) {
		return exitConfig
	}
	return exitFailed
}
