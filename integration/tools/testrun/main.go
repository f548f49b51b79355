// Command testrun runs the tests of the packages named to it and states in a few lines what came of them: what failed with
// its output, what was skipped and why, and how many there were. It is what `make test` runs.
//
// It must never hide a test: what did not run is counted and named, and with CI set a skip that is not on the list of
// allowed ones is a failure. No test is run a second time. It exits 0 only if there were tests and none failed but those in
// quarantine, a short list in the repository with a reason for each: they run and are named, and do not decide.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

type options struct {
	race      bool
	plain     folders
	short     bool
	parallel  int
	timeout   time.Duration
	stopwatch func() (elapsed func() time.Duration)
	split     folders
	shards    int
	log       string
	tags      string
	run       string
	allowFile string
	quarFile  string
	events    string
	cited     string
	longest   int
	ci        bool
	packages  []string
}

// stopwatch starts to measure, and returns what reads it.
func stopwatch() (elapsed func() time.Duration) {
	begun := time.Now()
	return func() time.Duration { return time.Since(begun) }
}

func main() {
	o := options{ci: os.Getenv("CI") != "", stopwatch: stopwatch}
	flag.BoolVar(&o.race, "race", false, "build with the race detector (needs a C compiler)")
	flag.Var(&o.plain, "plain", "no -race for packages below these folders, comma-separated: their tests start programs, which are built without it, or run in one goroutine")
	flag.BoolVar(&o.short, "short", false, "only tests that need nothing but Go")
	flag.IntVar(&o.parallel, "p", 2, "packages tested at the same time; 1: and one test at a time, also of those that call t.Parallel")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "limit for each package")
	flag.Var(&o.split, "split", "each test of the packages in these folders, comma-separated, runs in a process of its own, next to the other packages")
	flag.IntVar(&o.shards, "shards", 4, "tests of -split run at the same time")
	flag.StringVar(&o.log, "log", "", "append time, commit, load average, result and duration to this file")
	flag.StringVar(&o.tags, "tags", "", "build tags, comma-separated")
	flag.StringVar(&o.run, "run", "", "only the tests that match this regular expression")
	flag.StringVar(&o.quarFile, "quarantine", "", "file of tests whose failures are named and do not decide: \"package Test: reason\", five lines at most")
	flag.StringVar(&o.allowFile, "allowed-skips", "", "file of regular expressions; with CI set, a skip that matches none is a failure")
	flag.StringVar(&o.events, "events", "", "run nothing: report on the events in this file (as of go test -json; -: standard input)")
	flag.StringVar(&o.cited, "cited", "", "pages, separated by commas, that name tests as evidence, each as `folder.TestName`: "+
		"those of the packages that ran are a failure if they did not pass")
	flag.IntVar(&o.longest, "longest", 0, "name that many of the tests that took longest")
	flag.Parse()
	if o.packages = flag.Args(); len(o.packages) == 0 {
		o.packages = []string{"./..."}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	before, elapsed := load(), o.stopwatch()
	ok, err := run(ctx, o)
	if o.log != "" && ctx.Err() == nil {
		err = errors.Join(err, record(ctx, o.log, before, ok && err == nil, elapsed()))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
	}
	if !ok || err != nil {
		stop()
		os.Exit(1) //nolint:gocritic // the deferred call was made above
	}
}

func run(ctx context.Context, o options) (ok bool, err error) {
	allowed, err := readAllowed(o.allowFile)
	if err != nil {
		return false, err
	}
	if o.events != "" {
		return reportEvents(o, allowed)
	}
	quarantined, err := readQuarantine(o.quarFile)
	if err != nil {
		return false, err
	}
	packages, err := list(ctx, o)
	if err != nil {
		return false, err
	}
	all := slices.Clone(packages)
	r := newReport(os.Stdout)
	r.quarantined = quarantined
	if err := runTests(ctx, o, packages, r); err != nil {
		return false, err
	}
	r.longest(o.longest)
	return r.closeCited(o, allowed, all)
}

// runTests runs the tests of all packages. Those of -split, of -plain and the others run next to each other, unless -p is 1.
func runTests(ctx context.Context, o options, packages []string, r *report) error {
	var split []string
	if o.run == "" {
		packages, split = takeSplit(packages, o.split)
	}
	var wg sync.WaitGroup
	var errs [3]error
	if len(split) > 0 {
		wg.Go(func() { errs[0] = testSplit(ctx, o, split, r) })
	}
	raced, plain := o.takePlain(packages)
	for i, some := range [][]string{raced, plain} {
		if len(some) > 0 {
			wg.Go(func() { errs[i+1] = goTest(ctx, o, some, r) })
			if o.parallel == 1 {
				wg.Wait()
			}
		}
	}
	wg.Wait()
	return errors.Join(errs[:]...)
}

// reportEvents reports on tests that were run elsewhere, as they go.
func reportEvents(o options, allowed []*regexp.Regexp) (ok bool, err error) {
	in := os.Stdin
	if o.events != "-" {
		if in, err = os.Open(o.events); err != nil {
			return false, fmt.Errorf("read events: %w", err)
		}
		defer func() { err = errors.Join(err, in.Close()) }()
	}
	r := newReport(os.Stdout)
	if err := readEvents(in, r.stray, r.add); err != nil {
		return false, err
	}
	packages := make([]string, 0, len(r.order))
	for _, t := range r.order {
		packages = append(packages, t.pkg)
	}
	return r.closeCited(o, allowed, packages)
}

// folders is a flag's list of folders in the module, without "./" and a slash at the end.
type folders []string

func (f *folders) String() string { return strings.Join(*f, ",") }

func (f *folders) Set(list string) error {
	*f = nil
	for folder := range strings.SplitSeq(list, ",") {
		if folder = strings.Trim(folder, "./"); folder == "" {
			return errors.New("names no folder")
		}
		*f = append(*f, folder)
	}
	return nil
}
