// Package cli gives neardns's programs one command line: cobra's help, completion and suggestions, one meaning for each exit code, and
// one set of output formats.
//
// A wrong command line changes nothing: it ends with the exit code for usage, and its message names the command whose help has the rest.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/neardns/neardns/pkg/strict"
)

// Exit codes, the same for every command of every program.
const (
	Good     = 0
	Failed   = 1
	Config   = 2 // bad configuration or usage; nothing was changed
	Degraded = 3 // something is not as it should be, or another agent runs on the node
)

// ExitCodes is the line about them in each program's help.
const ExitCodes = "Exit codes: 0 good, 1 failed, 2 bad configuration or usage, 3 degraded or another agent runs on the node."

// ExitError is an error that chooses the exit code. Without Err, the command has printed its result already.
type ExitError struct {
	Code int
	Err  error
	// Bare leaves the program's name out of the message, for errors that start with a file and a line.
	Bare bool
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// Usage makes err an error of the command line.
func Usage(err error) error { return &ExitError{Code: Config, Err: err} }

// Usagef is Usage with a text.
func Usagef(format string, args ...any) error { return Usage(fmt.Errorf(format, args...)) }

// New returns a program's root command. Its subcommands take no arguments unless they set Args.
func New(name, about, version string) *cobra.Command {
	root := &cobra.Command{
		Use: name, Short: about, Long: name + " " + version + ": " + about + "\n\n" + ExitCodes,
		SilenceErrors: true, SilenceUsage: true,
	}
	root.SetFlagErrorFunc(flagError)
	return root
}

// flagError suggests the flag that was probably meant.
func flagError(c *cobra.Command, err error) error {
	unknown := (*pflag.NotExistError)(nil)
	if errors.As(err, &unknown) {
		var known []string
		c.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		if near, ok := strict.Nearest(unknown.GetSpecifiedName(), known...); ok {
			err = fmt.Errorf("%w; did you mean --%s?", err, near)
		}
	}
	if bad := (*pflag.InvalidValueError)(nil); errors.As(err, &bad) && bad.GetFlag().Value.Type() == "duration" {
		err = fmt.Errorf("--%s %s is no duration: write one such as 5s", bad.GetFlag().Name, bad.GetValue())
	}
	return Usagef("%w; `%s --help` lists the flags", err, c.CommandPath())
}

// Group returns a command that only holds others.
func Group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs}
	c.FParseErrWhitelist.UnknownFlags = true // they are a subcommand's, and the fault is its name
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return Usagef("name a command; `%s --help` lists them", c.CommandPath())
		}
		return unknownCommand(c, args[0])
	}
	c.AddCommand(commands...)
	return c
}

func unknownCommand(c *cobra.Command, name string) error {
	hint := ""
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(name); len(near) > 0 {
		hint = fmt.Sprintf(" did you mean %q?", near[0])
	}
	return Usagef("there is no command %q;%s `%s --help` lists them", name, hint, c.CommandPath())
}

// Run executes one command line and returns the exit code. Errors that are no ExitError mean Failed.
func Run(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SetOut(stdout)
	root.SetErr(stderr)
	prepare(root)
	if len(args) > 0 && args[0] == "help" { // cobra's own exits with 0 for a command that is not there
		args = args[1:]
		if c, rest, err := root.Find(args); err == nil && (len(rest) == 0 || !c.HasSubCommands()) {
			args = append(args[:len(args):len(args)], "--help")
		}
	}
	if len(args) == 1 && args[0] == "--version" { // cobra's own has another text, and links text/template, 11 MB of the controller
		args = []string{"version"}
	}
	if args == nil {
		args = []string{} // cobra would take the process's
	}
	root.SetArgs(args)
	started := false
	root.PersistentPreRun = func(*cobra.Command, []string) { started = true }
	c, err := root.ExecuteContextC(ctx)
	if err == nil {
		return Good
	}
	exit := &ExitError{Code: Failed, Err: err}
	if !errors.As(err, &exit) && !started {
		exit.Code = Config // cobra's own, of the command line
	}
	switch {
	case exit.Err == nil:
	case exit.Bare:
		_, _ = fmt.Fprintln(stderr, exit.Err)
	default:
		_, _ = fmt.Fprintf(stderr, "%s: %v\n", c.CommandPath(), exit.Err)
	}
	return exit.Code
}

// prepare has the root and every command refuse arguments that they do not take, in our words.
func prepare(root *cobra.Command) {
	if !root.Runnable() {
		root.Args = cobra.ArbitraryArgs
		root.RunE = func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(c, args[0])
			}
			c.SetOut(c.ErrOrStderr())
			_ = c.Help()
			return &ExitError{Code: Config}
		}
	}
	refuseArgs(root)
}

func refuseArgs(c *cobra.Command) {
	if c.Args == nil {
		c.Args = func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return Usagef("unexpected argument %q", args[0])
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		refuseArgs(sub)
	}
}
