package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/pods/podindex"
	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/internal/telemetry"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

// watching runs `status --watch` on an empty node next to an agent's socket, until the test ends it.
func watching(t *testing.T, out io.Writer) (end func() int) {
	t.Helper()
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "watch")
	dir := t.TempDir()
	text := head + "redirects: [10.96.0.10]\nstateDir: " + dir + "\npersistDir: " + dir + "/lib\n"
	e, _, stderr := fake(map[string]string{"/node.yaml": text})
	e.Stdout = out
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	health := telemetry.Health{
		Status: func() any { return node.Status{Instance: "me", Ready: true, Cache: &node.CacheStatus{Hits: 1}} },
		Pods:   func() any { return []any{map[string]any{"pod": "shop/web", "counts": podindex.Counts{Queries: 1}}} },
	}
	wg.Go(func() {
		telemetry.ServeSocket(ctx, slog.New(slog.DiscardHandler), dir+"/"+nodestate.AgentSocketName, health.SocketHandler())
	})
	code := make(chan int, 1)
	wg.Go(func() { ns.Do(func() { code <- run(ctx, e, []string{"status", "--watch", "--config", "/node.yaml"}) }) })
	return func() int {
		stop()
		wg.Wait()
		if stderr.Len() > 0 {
			t.Errorf("on standard error: %s", stderr)
		}
		return <-code
	}
}

// If the output is no terminal, each snapshot is printed below the one before, without a control character.
func TestStatusWatchPlain(t *testing.T) {
	out := new(testutil.Output)
	end := watching(t, out)
	testutil.Eventually(t, func() error {
		if text := out.String(); strings.Count(text, "SERVING") < 3 || !strings.Contains(text, "in the cache: no queries") {
			return fmt.Errorf("not three looks yet:\n%s", text)
		}
		return nil
	})
	if code := end(); code != cli.Good {
		t.Errorf("exit code %d", code)
	}
	if text := out.String(); strings.ContainsRune(text, '\x1b') {
		t.Errorf("a control character:\n%q", text)
	}
}

// On a terminal, each snapshot is drawn over the one before.
func TestStatusWatchTerminal(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	testutil.Must(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	testutil.Must(t, unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 20, Col: 30}))
	seen := new(testutil.Output)
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(seen, master) }) // ends with an error once the terminal is closed
	end := watching(t, terminal)
	testutil.Eventually(t, func() error {
		if strings.Count(seen.String(), "\x1b[H") < 2 {
			return fmt.Errorf("not drawn twice yet: %q", seen)
		}
		return nil
	})
	if code := end(); code != cli.Good {
		t.Errorf("exit code %d", code)
	}
	if err := terminal.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if err := master.Close(); err != nil {
		t.Error(err)
	}
	for _, l := range strings.Split(seen.String(), "\x1b[K\r\n") {
		if l = strings.TrimPrefix(strings.TrimPrefix(l, "\x1b[J"), "\x1b[H"); len(l) > 30 {
			t.Errorf("a line is wider than the terminal: %q", l)
		}
	}
}
