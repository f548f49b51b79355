package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	suite "github.com/neardns/neardns/integration/cluster/conformance"
	"github.com/neardns/neardns/integration/conformance"
)

// Where results are committed and drawn, from the repository's folder.
const (
	resultFile = "integration/conformance/result.json"
	resultPage = "docs/project/conformance.md"
)

// conform runs the suite, and takes each run into the committed result and the page at once.
func conform(ctx context.Context, out io.Writer, args []string) error {
	flags := flag.NewFlagSet("conformance", flag.ExitOnError)
	proxies := flags.String("proxy", strings.Join(conformance.Proxies(), ","), "kube-proxy's modes, with commas")
	on := flags.String("on", "bare,neardns,killed", "what is on the node, with commas: bare, neardns, killed")
	o := suite.Options{Say: func(format string, args ...any) { _, _ = fmt.Fprintf(out, format+"\n", args...) }}
	flags.StringVar(&o.Runtime, "runtime", "containerd16", "container runtime: containerd16 or containerd2")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o.Proxies = strings.Split(*proxies, ",")
	for one := range strings.SplitSeq(*on, ",") {
		if !slices.Contains(conformance.Everything(), conformance.On(one)) {
			return fmt.Errorf("-on: there is no %q: %v", one, conformance.Everything())
		}
		o.On = append(o.On, conformance.On(one))
	}
	var err error
	if o.Bin, err = filepath.Abs("bin"); err != nil {
		return err
	}
	var result conformance.Result
	text, err := os.ReadFile(resultFile)
	if err == nil {
		result, err = conformance.Parse(text)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	o.Done = func(kubernetes string, c conformance.Column) error {
		result = result.With(kubernetes, c)
		passed := 0
		for _, t := range c.Tests {
			if t.Outcome == conformance.Passed {
				passed++
			}
		}
		o.Say("%s, %s: %d of %d tests passed in %d s; the agent answered %d questions of pods, and was killed %d times",
			c.Proxy, c.On, passed, len(c.Tests), c.Seconds, c.Questions, c.Kills)
		return keep(result)
	}
	if err := suite.Run(ctx, o); err != nil {
		return err
	}
	if faults := result.Faults(); len(faults) > 0 {
		return fmt.Errorf("not the same tests pass:\n  %s", strings.Join(faults, "\n  "))
	}
	return nil
}

// keep writes the result and draws its page.
func keep(r conformance.Result) error {
	page, err := os.ReadFile(resultPage)
	if err != nil {
		return err
	}
	drawn, err := r.Page(string(page))
	if err != nil {
		return fmt.Errorf("%s: %w", resultPage, err)
	}
	return errors.Join(os.WriteFile(resultFile, []byte(r.String()), 0o644), os.WriteFile(resultPage, []byte(drawn), 0o644))
}
