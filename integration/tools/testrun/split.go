package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A package that is split is compiled once. Each of its tests runs in a process of its own, several at a time: kernel tests wait
// most of their time, and share nothing but the machine. The report hears of the package's end once, after its last test.
type splitPackage struct {
	path, dir, binary string
	tests             []string
	elapsed           func() float64 // seconds since its first test

	running sync.WaitGroup
	mu      sync.Mutex // guards the field below
	failed  bool
}

// takeSplit removes the packages in the folders of -split from the list, and returns them in the flag's order.
func takeSplit(packages []string, folders folders) (rest, split []string) {
	for _, folder := range folders {
		for _, p := range packages {
			if short(p) == folder {
				split = append(split, p)
			}
		}
	}
	return slices.DeleteFunc(packages, func(p string) bool { return slices.Contains(split, p) }), split
}

// testSplit runs all tests of the packages, o.shards at a time.
func testSplit(ctx context.Context, o options, packages []string, r *report) (err error) {
	dir, err := os.MkdirTemp("", "testrun")
	if err != nil {
		return fmt.Errorf("compile tests: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	converter, err := goCommand(ctx, "tool", "-n", "test2json").Output()
	if err != nil {
		return fmt.Errorf("find test2json: %w%s", err, stderrOf(err))
	}
	var ends sync.WaitGroup
	defer ends.Wait()
	lanes := make(chan struct{}, o.shards)
	for i, path := range packages {
		p := &splitPackage{path: path, binary: filepath.Join(dir, strconv.Itoa(i)+".test")}
		if failure, err := p.compile(ctx, o); err != nil {
			return err
		} else if failure != "" {
			r.buildFailed(path, failure)
			continue
		}
		for _, test := range p.tests {
			lanes <- struct{}{}
			p.running.Go(func() {
				defer func() { <-lanes }()
				p.run(ctx, o, strings.TrimSpace(string(converter)), test, r)
			})
		}
		ends.Go(func() { p.end(r) })
	}
	return ctx.Err()
}

// compile builds the package's tests and lists them. A failure of the compiler is the package's, and no error.
func (p *splitPackage) compile(ctx context.Context, o options) (failure string, err error) {
	args := append([]string{"test", "-c", "-vet=off", "-ldflags=-w", "-o", p.binary, "-tags", o.tags}, o.buildFlags(p.path)...)
	if out, err := o.withBuild(goCommand(ctx, append(args, p.path)...), p.path).CombinedOutput(); err != nil {
		return string(out), ctx.Err()
	}
	folder, err := goCommand(ctx, "list", "-f", "{{.Dir}}", p.path).Output()
	if err != nil {
		return "", fmt.Errorf("find folder of %s: %w%s", p.path, err, stderrOf(err))
	}
	p.dir = strings.TrimSpace(string(folder))
	list := exec.CommandContext(ctx, p.binary, "-test.list", ".")
	list.Dir = p.dir
	names, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("list tests of %s: %w%s", p.path, err, stderrOf(err))
	}
	p.tests = slices.DeleteFunc(strings.Fields(string(names)), func(name string) bool { return strings.HasPrefix(name, "Benchmark") })
	elapsed := o.stopwatch()
	p.elapsed = func() float64 { return elapsed().Seconds() }
	return "", nil
}

// run runs one test.
func (p *splitPackage) run(ctx context.Context, o options, converter, name string, r *report) {
	args := []string{"-test.v=test2json", "-test.paniconexit0", "-test.timeout=" + o.timeout.String(), "-test.run=^" + name + "$"}
	if o.short {
		args = append(args, "-test.short")
	}
	test := interruptible(exec.CommandContext(ctx, p.binary, args...))
	test.Dir = p.dir
	convert := exec.CommandContext(context.WithoutCancel(ctx), converter, "-t", "-p", p.path)
	output, err := test.StdoutPipe()
	test.Stderr = test.Stdout
	convert.Stdin = output
	events, pipeErr := convert.StdoutPipe()
	if err = errors.Join(err, pipeErr); err == nil {
		err = errors.Join(test.Start(), convert.Start())
	}
	if err == nil {
		readErr := readEvents(events, r.stray, func(e event) {
			if e.Test != "" || e.Action == "output" { // the package ends with its last process
				r.add(e)
			}
		})
		err = errors.Join(readErr, convert.Wait(), test.Wait())
	}
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.failed = true
		r.add(event{Action: "output", Package: p.path, Output: fmt.Sprintf("%s: %v\n", name, err)})
	}
}

// end reports the package, after its tests.
func (p *splitPackage) end(r *report) {
	p.running.Wait()
	action := "pass"
	if p.failed {
		action = "fail"
	}
	r.add(event{Action: action, Package: p.path, Elapsed: p.elapsed()})
}
