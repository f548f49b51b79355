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
