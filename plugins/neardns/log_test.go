package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "plugin.log")
	line := []byte(strings.Repeat("x", 99) + "\n")
	const limit = 10_000
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				testutil.Check(t, appendLine(path, line, limit))
			}
		})
	}
	wg.Wait()
	for _, p := range []string{path, path + ".1"} {
		data, err := os.ReadFile(p)
		testutil.Must(t, err)
		// Writers that were on their way while another one rotated add one line each.
		if len(data) > limit+8*len(line) || len(data) == 0 {
			t.Errorf("%s has %d bytes", p, len(data))
		}
		for i, got := range bytes.SplitAfter(bytes.TrimSuffix(data, []byte("\n")), []byte("\n")) {
			if len(bytes.TrimSuffix(got, []byte("\n"))) != len(line)-1 {
				t.Fatalf("%s: line %d is torn: %q", p, i+1, got)
			}
		}
	}
	if names, _ := os.ReadDir(filepath.Dir(path)); len(names) != 2 {
		t.Errorf("%d files", len(names))
	}
}

// If the log is a pipe that no program reads, and it is full, a line is an error, and does not block the pod's start.
func TestLogIsAFullPipe(t *testing.T) {
	testutil.RequireRoot(t) // the plugin waits maxLogWait for the pipe
	path := filepath.Join(t.TempDir(), "pipe")
	testutil.Must(t, unix.Mkfifo(path, 0o600))
	reader, err := os.OpenFile(path, os.O_RDWR, 0)
	testutil.Must(t, err)
	defer reader.Close()
	line := make([]byte, 1<<16) // a pipe's capacity
	_ = appendLine(path, line, maxLog)
	if err := appendLine(path, line, maxLog); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a line for a full pipe: %v", err)
	}
}

func TestOneLinePerVerb(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	add := addRequest("c1", pod, nil)
	for i, verb := range []string{"ADD", "CHECK", "DEL"} {
		out := r.must(add.with(verb))
		data := testutil.ReadFile(t, filepath.Join(r.state, nodestate.PluginLogName))
		lines := strings.Split(strings.TrimSuffix(data, "\n"), "\n")
		if len(lines) != i+1 {
			t.Fatalf("after %s: %d lines:\n%s", verb, len(lines), data)
		}
		last := lines[i]
		for _, want := range []string{"verb=" + strings.ToLower(verb), "container_id=c1", "pod=shop/web-0", "duration="} {
			if !strings.Contains(last, want) {
				t.Errorf("%s: no %s in %s", verb, want, last)
			}
		}
		testutil.Equal(t, verb+" on stderr", last+"\n", out.Stderr)
	}
}

// A log that cannot be written is reported on stderr and stops no verb.
func TestLogCannotBeWritten(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	pipe := filepath.Join(t.TempDir(), "pipe")
	pod.Run("mkfifo", pipe)
	for i, path := range []string{t.TempDir(), "/dev/null/x", pipe, "none"} {
		add := addRequest(fmt.Sprintf("c%d", i), pod, object{"logFile": path})
		out := r.must(add)
		wantPassed(t, out, add)
		if path != "none" && !strings.Contains(out.Stderr, "log file:") {
			t.Errorf("%s: stderr %q", path, out.Stderr)
		}
		r.must(add.with("DEL"))
	}
}

// A pod may end after neardns was removed from its node. DEL then makes no folder or file.
func TestLogFolderIsMadeByAddAlone(t *testing.T) {
	r, _, pod := ptpNode(t, testutil.IPv4)
	add := addRequest("c1", pod, nil)
	r.must(add.with("ADD"))
	testutil.ReadFile(t, filepath.Join(r.state, nodestate.PluginLogName))
	testutil.Must(t, os.RemoveAll(r.state))
	for _, verb := range []string{"DEL", "DEL"} {
		r.must(add.with(verb))
	}
	if left, err := os.ReadDir(r.state); !os.IsNotExist(err) {
		t.Errorf("the folder is there again: %v, %v", left, err)
	}
}
