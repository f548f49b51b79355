package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// event is one line of `go test -json`.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build-output and build-fail, in place of Package
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string
}

func list(ctx context.Context, o options) ([]string, error) {
	out, err := goCommand(ctx, append([]string{"list", "-tags", o.tags}, o.packages...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("list packages: %w%s", err, stderrOf(err))
	}
	return strings.Fields(string(out)), nil
}

func goTest(ctx context.Context, o options, packages []string, r *report) error {
	// make lint vets all packages.
	args := []string{"test", "-json", "-count=1", "-vet=off", "-ldflags=-w", "-p", strconv.Itoa(o.parallel), "-timeout", o.timeout.String(), "-tags", o.tags}
	if o.parallel == 1 {
		args = append(args, "-parallel", "1")
	}
	if o.run != "" {
		args = append(args, "-run", o.run)
	}
	if o.short {
		args = append(args, "-short")
	}
	cmd := o.withBuild(goCommand(ctx, append(append(args, o.buildFlags(packages[0])...), packages...)...), packages[0])
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("run go test: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run go test: %w", err)
	}
	readErr := readEvents(stdout, r.stray, r.add)
	err = cmd.Wait()
	// A status of 1 is a failed test, which the report knows of; one that it has not heard of must not get lost.
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && ctx.Err() == nil {
		if !r.failedAny() {
			return fmt.Errorf("go test: %w, although no test failed", err)
		}
		err = nil
	}
	return errors.Join(ctx.Err(), err, readErr)
}

func readEvents(from io.Reader, stray func(line string), add func(event)) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil {
				add(e)
			} else {
				stray(string(line)) // the go command's own words, such as of a broken go.mod
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read go test's output: %w", err)
		}
	}
}

// fuzz runs each fuzz target for a while. Without the race detector: it is about inputs, and the tests have been run
// with it over the stored ones.
func fuzz(ctx context.Context, o options, packages []string, r *report) error {
	elapsed := o.stopwatch()
	for i, p := range packages {
		if o.budget > 0 && elapsed() > o.budget {
			r.printf("not searched, after %v: %d packages from %s on\n", o.budget, len(packages)-i, short(p))
			break
		}
		out, err := goCommand(ctx, "test", "-list", "^Fuzz", p).Output()
		if err != nil {
			if r.failedAny() {
				continue // it does not build, as the report has it
			}
			return fmt.Errorf("list fuzz targets of %s: %w%s", p, err, stderrOf(err))
		}
		for _, target := range strings.Fields(string(out)) {
			if !strings.HasPrefix(target, "Fuzz") {
				continue
			}
			took := o.stopwatch()
			text, err := goCommand(ctx, "test", "-run", "^$", "-fuzz", "^"+target+"$", "-fuzztime", o.fuzzTime.String(), p).CombinedOutput()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			ok := err == nil || outOfTime(text)
			var found []string
			if !ok && o.keep != "" {
				if found, err = keep(ctx, o.keep, p, text); err != nil {
					return err
				}
			}
			r.fuzzed(p, target, took(), ok, found, string(text))
		}
	}
	return nil
}

var written = regexp.MustCompile(`Failing input written to (\S+)`)

// keep takes the inputs that a target was found to fail on out of the package's testdata into a folder, so that the tree
// stays as it was, and reports where they are. A target that fails on a stored input writes none.
func keep(ctx context.Context, dir, pkg string, output []byte) ([]string, error) {
	found := written.FindAllSubmatch(output, -1)
	if len(found) == 0 {
		return nil, nil
	}
	where, err := goCommand(ctx, "list", "-f", "{{.Dir}}", pkg).Output()
	if err != nil {
		return nil, fmt.Errorf("find folder of %s: %w%s", pkg, err, stderrOf(err))
	}
	var kept []string
	for _, m := range found {
		from := filepath.Join(strings.TrimSpace(string(where)), string(m[1]))
		to := filepath.Join(dir, filepath.Base(filepath.Dir(from)), filepath.Base(from))
		if err := os.MkdirAll(filepath.Dir(to), 0o750); err != nil {
			return nil, fmt.Errorf("keep what fuzzing found: %w", err)
		}
		if err := os.Rename(from, to); err != nil {
			return nil, fmt.Errorf("keep what fuzzing found: %w", err)
		}
		kept = append(kept, to)
	}
	return kept, nil
}

// outOfTime distinguishes the go command's own fault (golang/go#48157: the deadline hits while a worker is busy) from a finding,
// which always names the input that it wrote down.
func outOfTime(text []byte) bool {
	return bytes.Contains(text, []byte("context deadline exceeded")) && !bytes.Contains(text, []byte("Failing input"))
}

// goCommand runs the go command so that an interrupt ends it, and with it its tests, by the signal that they handle.
func goCommand(ctx context.Context, args ...string) *exec.Cmd {
	return interruptible(exec.CommandContext(ctx, "go", args...))
}

func interruptible(cmd *exec.Cmd) *exec.Cmd {
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 20 * time.Second
	return cmd
}

func stderrOf(err error) string {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return "\n" + strings.TrimSpace(string(exit.Stderr))
	}
	return ""
}
