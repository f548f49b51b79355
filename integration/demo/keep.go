package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// hold makes sure that one demo runs at a time: its folder and its names are fixed.
func hold() (unlock func(), err error) {
	f, err := os.OpenFile(folder+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, errors.New("another demo is running on this machine")
	}
	return func() {
		// Removed under the lock; one that waits does not exist, since no process waits.
		_ = os.Remove(f.Name())
		_ = f.Close()
	}, nil
}

// sweepKept takes away what a run with KEEP=1 left, and what one left that was killed.
func sweepKept() error {
	if _, err := os.Stat(folder); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, pid := range ourProcesses() {
		start := startTime(pid)
		_ = unix.Kill(pid, unix.SIGKILL)
		for deadline := time.Now().Add(5 * time.Second); start != "" && startTime(pid) == start && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond) //nolint:forbidigo // not our child: there is nothing to wait on
		}
	}
	testutil.RemoveKept()
	// The namespaces of a run that was killed go when the next one is made.
	if err := testutil.Program(context.Background(), io.Discard, func(t testutil.TB) { testutil.NewNS(t, "demo-sweep") }); err != nil {
		return err
	}
	removeBPF()
	if err := os.RemoveAll(folder); err != nil {
		return fmt.Errorf("remove what an earlier run left: %w", err)
	}
	fmt.Println("took away what an earlier run left")
	return nil
}

// ourProcesses finds the servers that work from the demo's folder, also those that another program started again by hand.
func ourProcesses() []int {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var pids []int
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it ended
		}
		args := strings.Split(string(text), "\x00")
		program := filepath.Base(args[0])
		inFolder := slices.ContainsFunc(args[1:], func(a string) bool { return strings.HasPrefix(a, folder+"/") })
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && inFolder && (program == "coredns" || program == "neardns-agent") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// startTime is when a process started, in the kernel's ticks; "" if there is none of that pid.
func startTime(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(after)
	if len(fields) < 20 || fields[0] == "Z" {
		return ""
	}
	return fields[19] // field 22 of the line
}
