//go:build timing

package listener

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestTimingDeafClient: the server closes the connection of a client that does not read after maxWrite.
// State: TestDeafClient (this package).
func TestTimingDeafClient(t *testing.T) {
	begun := time.Now()
	deafClient(t)
	if took := time.Since(begun); took > 3*maxWrite {
		t.Errorf("the connection was closed after %s", took)
	}
}

// TestTimingIdleConnectionEnds: an idle connection delays the server's end by less than maxDrain.
// State: TestFirstDrains (this package).
func TestTimingIdleConnectionEnds(t *testing.T) {
	s, cfg := serve(t, nil, &handler{do: answer, first: &shelf{name: "known.example.org."}})
	conn := dial(t, "tcp", addressOf(cfg))
	testutil.Must(t, conn.WriteMsg(question("known.example.org.", dns.TypeA)))
	if _, err := conn.ReadMsg(); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	testutil.Must(t, s.Stop())
	if took := time.Since(begun); took > maxDrain {
		t.Errorf("an idle connection kept the server for %s", took)
	}
}

// TestTimingPipedStop: a server that stops ends a connection right after its last answer, not after maxIdle.
// State: TestPipedStop (this package).
func TestTimingPipedStop(t *testing.T) {
	h := newHeld()
	s, cfg := serve(t, nil, &h.handler)
	conn := dialTCP(t, "127.0.0.1", cfg)
	send(t, conn, 1, "slow.example.org.")
	waitFor(t, "it is in work", func() bool { return h.in.Load() == 1 })
	done := stopping(t, s)
	close(h.free)
	begun := time.Now()
	wantIDs(t, conn, 1)
	if _, err := conn.ReadMsg(); !errors.Is(err, io.EOF) || time.Since(begun) > maxIdle/2 {
		t.Errorf("after the last answer: %v after %s", err, time.Since(begun))
	}
	testutil.Must(t, <-done)
}

// TestTimingNoDescriptors: a connection that cannot be accepted costs next to no CPU time.
// State: TestNoDescriptors (this package).
func TestTimingNoDescriptors(t *testing.T) {
	testutil.RequireRoot(t)
	if !testutil.InChild(t) { // the limit is the whole process's
		return
	}
	_, cfg := start(t, answer)
	tcp, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	testutil.Must(t, err)
	defer unix.Close(tcp)
	lift := testutil.NoDescriptors(t)
	defer lift()
	testutil.Must(t, unix.Connect(tcp, &unix.SockaddrInet4{Addr: cfg.Addresses[0].As4(), Port: int(cfg.Port)}))
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
