package main

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/tick"
)

// watchEvery is the refresh interval of `status --watch`.
const watchEvery = 2 * time.Second

// inspector returns an Inspector with this node's configuration: the file's, else that of the running agent, else a detected one. If the
// file has a fault but an agent runs, the Inspector has the agent's configuration and the fault.
func inspector(ctx context.Context, e env, path string) (*inspect.Inspector, error) {
	conf, fault, err := inspect.InEffect(ctx, path, e.Env)
	if err != nil {
		return nil, badConfig(err)
	}
	return &inspect.Inspector{Conf: conf, Fault: fault, ReadFile: e.ReadFile}, nil
}

func statusCommand(e env) *cobra.Command {
	c := &cobra.Command{Use: "status", Short: "show whether the agent serves, its leases, faults, upstreams and pods"}
	path := configFlag(c)
	watch := c.Flags().Bool("watch", false, "refresh every 2 s; show which server answers, query rates, busiest pods")
	out := cli.OutputFlag(c, "wide")
	c.RunE = func(c *cobra.Command, _ []string) error {
		format, err := out.Format()
		if err != nil {
			return err
		}
		if *watch {
			if format != "" {
				return cli.Usagef("--watch and -o %s: use one of them", format)
			}
			return watchStatus(c.Context(), e, *path)
		}
		in, err := inspector(c.Context(), e, *path)
		if err != nil {
			return err
		}
		s, err := in.Status(c.Context())
		if err != nil {
			return err
		}
		if err := out.Print(e.Stdout, s, func() string { return s.Text(format == "wide") }); err != nil {
			return err
		}
		if !s.Good() {
			return &cli.ExitError{Code: cli.Degraded}
		}
		return nil
	}
	return c
}

// watchStatus shows the status repeatedly until ctx ends.
func watchStatus(ctx context.Context, e env, path string) error {
	var before *inspect.Reading
	for {
		in, err := inspector(ctx, e, path) // each time, because the configuration may have changed
		if err != nil {
			return err
		}
		now, err := in.Read(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the user ended the command
		}
		if err != nil {
			return err
		}
		rows, cols := terminal(e.Stdout)
		if _, err := io.WriteString(e.Stdout, inspect.Frame(now.Text(before), rows, cols)); err != nil {
			return err
		}
		before = now
		if !tick.Pause(ctx, watchEvery) {
			return nil
		}
	}
}

// terminal returns the size of the terminal out, and 0, 0 if out is no terminal.
func terminal(out io.Writer) (rows, cols int) {
	f, ok := out.(*os.File)
	if !ok {
		return 0, 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	if size.Row == 0 || size.Col == 0 {
		return 24, 80 // a terminal without a known size, such as a serial line
	}
	return int(size.Row), int(size.Col)
}
