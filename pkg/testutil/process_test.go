package testutil

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
)

func TestProcess(t *testing.T) {
	RequireRoot(t)
	t.Parallel()
	ns := NewNS(t, "process")
	p := ns.Start("sh", "-c", "trap 'echo bye; exit 7' TERM; ip -o link; while :; do sleep 0.05; done")
	Eventually(t, func() error {
		if out := p.Output(); !strings.Contains(out, "lo") {
			return fmt.Errorf("printed %q", out)
		}
		return nil
	})
	if strings.Count(p.Output(), "\n") != 1 {
		t.Errorf("not in a namespace of its own:\n%s", p.Output())
	}
	p.Stop()
	p.Cont()
	if err := p.Terminate(Patience()); err == nil || err.Error() != "exit status 7" {
		t.Errorf("ended with %v", err)
	}
	if !strings.Contains(p.Output(), "bye") {
		t.Errorf("printed %q", p.Output())
	}

	killed := ns.Start("sleep", "1000")
	pid := killed.PID()
	killed.Kill()
	killed.Kill()
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("process %d is still there: %v", pid, err)
	}
}

func TestEventually(t *testing.T) {
	synctest.Test(t, testEventually)
}

func testEventually(t *testing.T) {
	calls := 0
	Eventually(t, func() error {
		if calls++; calls < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if calls != 3 {
		t.Error(calls)
	}
}
