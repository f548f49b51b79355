package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/neardns/neardns/agent/internal/lifecycle"
)

// Exit codes, the same for every command.
const (
	exitGood     = 0
	exitFailed   = 1
	exitConfig   = 2 // bad configuration or usage: nothing was changed
	exitDegraded = 3 // something is not as it should be, or another agent holds the node
)

// command is one subcommand. run returns an exitError to choose the exit code; other errors mean exitFailed.
type command struct {
	name, args, about string
	run               func(ctx context.Context, e env, args []string) error
}

func commands() []command {
	return []command{
		{"node", "[--config FILE] [--take-over] [--pod-dir DIR]", "run the cache of this node (what the DaemonSet runs)", runNode},
		{nodecacheName, "[node-cache's flags]", "stand in for NodeLocal DNSCache's node-cache: its flags, its Corefile template; flags alone mean " +
			"this, too", runNodecache},
		{"hosts", "[--config FILE] [--host-root DIR]", "keep names of Services in the node's /etc/hosts, for programs below the pods (what install/hosts runs)",
			runHosts},
		{"ready", "[--config FILE | --pod-dir DIR] [--alive]", "whether the agent serves under its leases, or at least runs, for the kubelet's probes",
			runReady},
		{"status", "[--config FILE] [--json | --watch]", "what is served, under which leases, since when; --watch goes on", runStatus},
		{"doctor", "[--config FILE] [--json] [--bundle FILE] [--cni-conf DIR] [--cni-bin DIR]",
			"what is wrong on this node and what to do; it only looks; --bundle packs what a bug report needs", runDoctor},
		{"pods", "[--config FILE] [--json]", "the pods of this node: their DNS settings, what became of an overlay, and their questions", runPods},
		{"config", "check|show [--config FILE] [--corefile] [--format yaml|conflist-entry]", "check the configuration, or print it as it takes effect",
			runConfig},
		{"cleanup", "[--config FILE] [--cni-conf DIR] [--host-root DIR] [--link NAME]", "take away everything that neardns left on this node", runCleanup},
		{"version", "", "print the version", runVersion},
	}
}

// exitError carries the exit code of a command that has printed its result already, or has it in err.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func badConfig(err error) error { return &exitError{code: exitConfig, err: err} }

// run executes one command line and returns the exit code.
func run(ctx context.Context, e env) int {
	if len(e.args) == 0 || e.args[0] == "help" || e.args[0] == "-h" || e.args[0] == "--help" {
		if len(e.args) == 0 {
			usage(e.stderr, e.version)
			return exitConfig
		}
		usage(e.stdout, e.version)
		return exitGood
	}
	name, args := e.args[0], e.args[1:]
	if strings.HasPrefix(name, "-") {
		// A manifest's args for node-cache, whose image was changed for ours.
		name, args = nodecacheName, e.args
	}
	for _, c := range commands() {
		if c.name != name {
			continue
		}
		err := c.run(ctx, e, args)
		var exit *exitError
		var fault *lifecycle.ConfigError
		switch {
		case err == nil, errors.Is(err, flag.ErrHelp):
			return exitGood
		case errors.As(err, &exit):
			if exit.err != nil {
				fmt.Fprintf(e.stderr, "neardns-agent %s: %v\n", c.name, exit.err)
			}
			return exit.code
		default:
			code := exitFailed
			if errors.As(err, &fault) {
				code = exitConfig
			} else if lifecycle.IsLocked(err) {
				code = exitDegraded
			}
			fmt.Fprintf(e.stderr, "neardns-agent %s: %v\n", c.name, err)
			return code
		}
	}
	if name == "edge" {
		fmt.Fprintln(e.stderr, "neardns-agent: the command edge is a program of its own: run neardns-edge with the same flags (fleet/docs/edge.md)")
		return exitConfig
	}
	fmt.Fprintf(e.stderr, "neardns-agent: there is no command %q; `neardns-agent help` lists them\n", e.args[0])
	return exitConfig
}

func usage(w io.Writer, version string) {
	var b strings.Builder
	fmt.Fprintf(&b, "neardns-agent %s: a DNS cache on every node\n\n", version)
	for _, c := range commands() {
		fmt.Fprintf(&b, "  %s\n      %s\n", strings.TrimSpace(c.name+" "+c.args), c.about)
	}
	b.WriteString("\nExit codes: 0 good, 1 failed, 2 bad configuration or usage, 3 degraded or another agent holds the node.\n")
	fmt.Fprint(w, b.String())
}

func flags(name string) *flag.FlagSet {
	return flag.NewFlagSet("neardns-agent "+name, flag.ContinueOnError)
}

// parse reads flags and refuses leftovers. Requested help is no fault; wrong usage is a configuration fault.
func parse(e env, fs *flag.FlagSet, args []string) error {
	var said bytes.Buffer
	fs.SetOutput(&said)
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		_, _ = said.WriteTo(e.stdout)
		return err
	case err != nil:
		_, _ = said.WriteTo(e.stderr)
		return &exitError{code: exitConfig}
	case fs.NArg() > 0:
		return badConfig(fmt.Errorf("unexpected argument %q", fs.Arg(0)))
	}
	return nil
}

func runVersion(_ context.Context, e env, args []string) error {
	if err := parse(e, flags("version"), args); err != nil {
		return err
	}
	_, err := fmt.Fprintln(e.stdout, "neardns-agent", e.version)
	return err
}
