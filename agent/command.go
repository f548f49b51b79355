package main

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/neardns/neardns/agent/internal/lifecycle"
	"github.com/neardns/neardns/internal/cli"
)

const program = "neardns-agent"

// env has those parts of the process that tests replace.
type env = lifecycle.Env

func rootCommand(e env) *cobra.Command {
	root := cli.New(program, "a DNS cache on every node", e.Version)
	root.AddCommand(nodeCommand(e), nodecacheCommand(e), hostsCommand(e), readyCommand(e), statusCommand(e), doctorCommand(e), podsCommand(e),
		queryCommand(e), configCommand(e), cleanupCommand(e), cli.Version(program, e.Version), edgeCommand())
	return root
}

// run executes the command line and returns the exit code.
func run(ctx context.Context, e env, args []string) int {
	if len(args) > 0 && strings.HasPrefix(args[0], "-") && args[0] != "-h" && args[0] != "--help" {
		// Flags without a command are those of node-cache: a manifest of NodeLocal DNSCache in which only the image was changed.
		args = append([]string{nodecacheName}, args...)
	}
	return cli.Run(ctx, rootCommand(e), args, e.Stdout, e.Stderr)
}

// edgeCommand returns the former command `edge`, which only names the program that replaced it.
func edgeCommand() *cobra.Command {
	moved := func(*cobra.Command, []string) error {
		return cli.Usagef("it is a program of its own: run neardns-edge with the same flags (fleet/docs/edge.md)")
	}
	return &cobra.Command{Use: "edge", Hidden: true, DisableFlagParsing: true, Args: cobra.ArbitraryArgs, RunE: moved}
}

// badConfig gives an error of the configuration its exit code. It is printed without the program's name, because it usually begins with
// the name of the file.
func badConfig(err error) error { return &cli.ExitError{Code: cli.Config, Err: err, Bare: true} }

// ended adds the exit code to an error that ended node, nodecache, hosts or cleanup.
func ended(err error) error {
	switch {
	case errors.As(err, new(*lifecycle.ConfigError)):
		return badConfig(err)
	case err != nil && lifecycle.IsLocked(err):
		return &cli.ExitError{Code: cli.Degraded, Err: err}
	}
	return err
}
