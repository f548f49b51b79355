//go:build timing

package listener

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestTimingDeafClient: the server closes the connection of a client that does not read after maxWrite.
//
// State: TestDeafClient. Bound: none, maxWrite is a deadline of the kernel's socket.
func TestTimingDeafClient(t *testing.T) {
	begun := time.Now()
	deafClient(t)
	if took := time.Since(begun); took > 3*maxWrite {
		t.Errorf("the connection was closed after %s", took)
	}
}

// TestTimingIdleConnectionEnds: an idle connection delays the server's end by less than maxDrain.
//
// State: TestFirstDrains. Bound: TestEnd.
func TestTimingIdleConnectionEnds(t *testing.T) {
	begun := time.Now()
	firstDrains(t, usualLimits.end)
	if took := time.Since(begun); took > maxDrain {
		t.Errorf("an idle connection kept the server for %s", took)
	}
}

// TestTimingPipedStop: a server that stops ends a connection right after its last answer, not after limits.end.
//
// State: TestPipedStop. Bound: none, the end follows the last answer, and no timer.
func TestTimingPipedStop(t *testing.T) {
	h, s, conn := newHeld(t, nil, usualLimits.end)
	send(t, conn, 1, "slow.example.org.")
	testutil.WaitFor("it is in work", func() bool { return h.in.Load() == 1 })
	done := stopping(t, s)
	close(h.free)
	begun := time.Now()
	wantIDs(t, conn, 1)
	wantEnd(t, conn)
	if took := time.Since(begun); took > usualLimits.end/2 {
		t.Errorf("the connection ended %s after the last answer", took)
	}
	testutil.Must(t, <-done)
}

// TestTimingNoDescriptors: a connection that cannot be accepted costs next to no CPU time.
//
// State: TestNoDescriptors. Bound: none, it measures CPU time.
func TestTimingNoDescriptors(t *testing.T) {
	testutil.RequireRoot(t)
	if !testutil.InChild(t) { // the limit is the whole process's
		return
	}
	unaccepted(t)
	before := cpuTime(t)
	<-time.After(time.Second)
	if used := cpuTime(t) - before; used > 300*time.Millisecond {
		t.Errorf("a connection that cannot be accepted takes %s of CPU time in a second", used)
	}
}

func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	testutil.Must(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
