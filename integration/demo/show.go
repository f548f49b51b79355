package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
)

// show is one run of the demo.
type show struct {
	ctx     context.Context
	keep    bool
	proxy   testutil.ProxyMode
	ipv6    bool // the machine has it, so the node is dual stack
	style   style
	bin     string
	started time.Time

	t       testutil.TB
	node    *testutil.Node
	kubeDNS *server
	outside *server
	agent   *testutil.Process
	rules   *nft.Nftables // of the host's namespace, to look at
	kernel  bool          // it answers hits
	older   *pod          // made before neardns came
	early   *pod          // made before the agent
	late    *pod          // made after it
	legacy  *pod          // names the local address
	plain   *pod          // wants none of it
	markers int
	kept    bool

	steps  int
	checks []check
}

// check is one line of the table at the end.
type check struct {
	what, want, got string
	ok              bool
}

// step begins a part of the show.
func (s *show) step(format string, args ...any) {
	s.steps++
	fmt.Printf("\n%s\n", s.style.bold(fmt.Sprintf("%d. %s", s.steps, fmt.Sprintf(format, args...))))
}

// tell prints what is shown, indented below its step.
func (s *show) tell(format string, args ...any) {
	for line := range strings.Lines(strings.TrimRight(fmt.Sprintf(format, args...), "\n") + "\n") {
		fmt.Print("   " + line)
	}
}

// expect prints what was seen next to what should be.
func (s *show) expect(what, want, got string) {
	c := check{what, want, got, want == got}
	s.checks = append(s.checks, c)
	if c.ok {
		s.tell("=> %s: %s [%s]", what, got, s.style.green("ok"))
		return
	}
	s.tell("=> %s: %s [%s]\n   expected: %s", what, got, s.style.red("NOT AS IT SHOULD BE"), want)
}

// verdict prints the table and returns an error unless every line is as it should be.
func (s *show) verdict(w io.Writer) error {
	_, _ = fmt.Fprintf(w, "\n%s\n\n", s.style.bold(fmt.Sprintf("What was seen (%s, kube-proxy's rules: %s)", time.Since(s.started).Round(time.Second), s.proxy)))
	return writeTable(w, s.style, s.checks)
}

// writeTable prints one line for each check. Nothing checked is a failure: the show ended before it began.
func writeTable(w io.Writer, st style, checks []check) error {
	var text bytes.Buffer
	columns := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	failed := 0
	for i, c := range checks {
		mark := "ok"
		if !c.ok {
			mark = "FAILED, expected: " + c.want
			failed++
		}
		_, _ = fmt.Fprintf(columns, "  %2d\t%s\t%s\t%s\n", i+1, c.what, c.got, mark)
	}
	_ = columns.Flush() // into memory
	for i, line := range slices.Collect(strings.Lines(text.String())) {
		if !checks[i].ok {
			line = st.red(strings.TrimSuffix(line, "\n")) + "\n"
		}
		_, _ = io.WriteString(w, line)
	}
	_, _ = fmt.Fprintf(w, "\n%d of %d as they should be\n", len(checks)-failed, len(checks))
	switch {
	case failed > 0:
		return fmt.Errorf("%d of %d lines are not as they should be", failed, len(checks))
	case len(checks) == 0:
		return errors.New("nothing was checked")
	}
	return nil
}

// tellWhy shows the end of the agent's log, which goes with the rest, where something was not as it should be.
func (s *show) tellWhy() {
	const most = 20
	if s.ctx.Err() != nil || !slices.ContainsFunc(s.checks, func(c check) bool { return !c.ok }) {
		return
	}
	if text, err := os.ReadFile(agentLog); err == nil {
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		s.tell("\nthe agent's log, its end:\n%s", strings.Join(lines[max(0, len(lines)-most):], "\n"))
	}
}

// style sets text off: on a terminal by colour, elsewhere not at all.
type style struct{ colour bool }

// styleOf knows a terminal. NO_COLOR is what people set who want none (no-color.org).
func styleOf(f *os.File, noColor bool) style {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return style{colour: err == nil && !noColor}
}

func (s style) paint(code, text string) string {
	if !s.colour {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s style) bold(text string) string  { return s.paint("1", text) }
func (s style) green(text string) string { return s.paint("32", text) }
func (s style) red(text string) string   { return s.paint("31", text) }

// program runs one of this project's programs in the node's namespace, and shows the call and its output.
func (s *show) program(name string, args ...string) (string, error) {
	s.tell("node$ %s", strings.Join(append([]string{name}, shorten(args)...), " "))
	out, err := s.quiet(name, args...)
	s.tell("%s", strings.ReplaceAll(out, folder+"/", ""))
	return out, err
}

func (s *show) quiet(name string, args ...string) (string, error) {
	var out []byte
	var err error
	s.node.Host.Do(func() {
		cmd := exec.CommandContext(s.ctx, s.bin+"/"+name, args...)
		out, err = cmd.CombinedOutput()
	})
	return string(out), err
}

// shorten takes the demo's folder off the paths that are shown.
func shorten(args []string) []string {
	out := make([]string, 0, len(args))
	for _, a := range args {
		out = append(out, strings.ReplaceAll(a, folder+"/", ""))
	}
	return out
}
