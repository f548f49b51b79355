// Package cli gives neardns's programs, except the CNI plugin and the iptables wrapper, the same command line: cobra's help, completion and
// suggestions, the same exit codes and the same output formats.
//
// On failure: a wrong command line changes nothing, and the program exits with code 2.
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

// Exit codes of the commands.
const (
	Good     = 0
	Failed   = 1
	Config   = 2 // bad configuration or usage; nothing was changed
	Degraded = 3 // a fault was found, or another agent runs on the node
)

// ExitCodes is the line in each program's help that explains the exit codes.
const ExitCodes = "Exit codes: 0 good, 1 failed, 2 bad configuration or usage, 3 degraded or another agent runs on the node."

// ExitError is an error with an exit code. If Err is nil, nothing is printed, because the command has printed its result already.
type ExitError struct {
	Code int
	Err  error
	// Bare prints the message without the program's name, for errors that start with file and line.
	Bare bool
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// Usage wraps err so that the program exits with code 2.
func Usage(err error) error { return &ExitError{Code: Config, Err: err} }

// Usagef is Usage for a formatted message.
func Usagef(format string, args ...any) error { return Usage(fmt.Errorf(format, args...)) }

// New returns a program's root command. Its subcommands refuse arguments unless they set Args.
func New(name, about, version string) *cobra.Command {
	root := &cobra.Command{
		Use: name, Short: about, Long: name + " " + version + ": " + about + "\n\n" + ExitCodes,
		SilenceErrors: true, SilenceUsage: true,
	}
	root.SetFlagErrorFunc(flagError)
	return root
}

// flagError adds to an error about a flag the name of a similar flag, and the command whose help lists the flags.
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

// Group returns a command that does nothing itself and only has subcommands.
func Group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs}
	c.FParseErrWhitelist.UnknownFlags = true // unknown flags belong to the misspelled subcommand, whose name is the fault to report
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

// Run executes a command line and returns the exit code. An error that is not an ExitError means Failed, or Config if it comes before the
// command began.
func Run(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SetOut(stdout)
	root.SetErr(stderr)
	prepare(root)
	if len(args) > 0 && args[0] == "help" { // cobra's help command exits with 0 even if the command does not exist
		args = args[1:]
		if c, rest, err := root.Find(args); err == nil && (len(rest) == 0 || !c.HasSubCommands()) {
			args = append(args[:len(args):len(args)], "--help")
		}
	}
	// cobra's own --version prints another text, and a template for it would link text/template (11 MB in the controller)
	if len(args) == 1 && args[0] == "--version" {
		args = []string{"version"}
	}
	if args == nil {
		args = []string{} // with nil, cobra would use os.Args
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
		exit.Code = Config // an error of cobra about the command line
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

// prepare makes the root and every command refuse arguments that they do not take, with our error texts instead of cobra's.
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
