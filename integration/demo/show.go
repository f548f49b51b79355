package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// show is one run of the demo.
type show struct {
	ctx     context.Context
	keep    bool
	proxy   testutil.ProxyMode
	bin     string
	started time.Time

	t       testutil.TB
	node    *testutil.Node
	kubeDNS *server
	outside *server
	agent   *testutil.Process
	rules   *steer.Nftables // of the host's namespace, to look at
	pods    []*pod
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
	fmt.Printf("\n%d. %s\n", s.steps, fmt.Sprintf(format, args...))
}

// tell prints what is shown, indented below its step.
func (s *show) tell(format string, args ...any) {
	for line := range strings.Lines(strings.TrimRight(fmt.Sprintf(format, args...), "\n") + "\n") {
		fmt.Print("   " + line)
	}
}

// expect puts what was seen beside what should be.
func (s *show) expect(what, want, got string) {
	c := check{what, want, got, want == got}
	s.checks = append(s.checks, c)
	mark := "ok"
	if !c.ok {
		mark = "NOT AS IT SHOULD BE"
	}
	s.tell("=> %s: %s [%s]", what, got, mark)
	if !c.ok {
		s.tell("   expected: %s", want)
	}
}

// verdict prints the table and returns an error unless every line is as it should be.
func (s *show) verdict() error {
	fmt.Printf("\nWhat was seen (%s, kube-proxy's rules: %s)\n\n", time.Since(s.started).Round(time.Second), s.proxy)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	failed := 0
	for _, c := range s.checks {
		mark := "ok"
		if !c.ok {
			mark = "FAILED, expected: " + c.want
			failed++
		}
		_, _ = fmt.Fprintf(w, "  %s\t%s\t%s\n", c.what, c.got, mark)
	}
	_ = w.Flush()
	fmt.Printf("\n%d of %d as they should be\n", len(s.checks)-failed, len(s.checks))
	switch {
	case failed > 0:
		return fmt.Errorf("%d of %d lines are not as they should be", failed, len(s.checks))
	case len(s.checks) == 0:
		return errors.New("nothing was checked")
	}
	return nil
}

// program runs one of this project's programs in the node's namespace, and shows the call and what it says.
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
