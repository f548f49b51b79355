package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// record appends a line to the log of runs: when the run ended, its commit, the machine's load before and after, result and duration.
func record(ctx context.Context, file, loadBefore string, ok bool, took time.Duration) (err error) {
	commit := "no commit"
	cmd := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--exclude=*")
	if out, err := cmd.Output(); err == nil {
		commit = strings.TrimSpace(string(out))
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("record the run: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	result := map[bool]string{true: "passed", false: "FAILED"}[ok]
	_, err = fmt.Fprintf(f, "%s | %s | load %s before, %s after | %s | %s\n", time.Now().UTC().Format(time.DateTime), commit, loadBefore, load(), result, took.Round(time.Second))
	return err
}

// load is the load average of the last minute, and "unknown" if the kernel does not report it.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	average, _, _ := strings.Cut(string(text), " ")
	return average
}
