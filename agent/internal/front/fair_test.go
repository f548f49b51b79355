package front

import (
	"log/slog"
	"net"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/agent/internal/hit"
	"github.com/neardns/neardns/agent/internal/query"
)

// TestReaderGivesWay: one goroutine that always finds a question, on one processor, leaves others their turn. No goroutine of the test may
// wake the runtime's monitor meanwhile: the first question comes from another process, each further one from the answerer, and whoever
// waits waits in the poller, without a deadline.
func TestReaderGivesWay(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	waits, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer waits.Close()
	cfg := configOf(t)
	again := &feeder{toServer: connected(t, addressOf(cfg)), toOther: connected(t, waits.LocalAddr().String()), turns: make(chan time.Time, 1)}
	s := New(slog.New(slog.DiscardHandler), nil)
	if err := s.Start(t.Context(), cfg, (&handler{do: answer, first: again}).build, nil); err != nil {
		t.Fatal(err)
	}
	defer func() {
		again.over.Store(true)
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}()

	q, err := question("a.example.org.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, c := range q {
		text.WriteString(`\x` + strconv.FormatUint(uint64(c)|0x100, 16)[1:])
	}
	// After a time in which the monitor has gone to sleep, since nothing runs.
	cmd := exec.Command("bash", "-c", "sleep 0.3; printf '"+text.String()+"' > /dev/udp/127.0.0.1/"+strconv.Itoa(int(cfg.Port)))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait() //nolint:errcheck // it has done its part, or the read below fails
	if _, err := waits.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	took := time.Since(<-again.turns)
	again.over.Store(true)
	if took > feederMost/2 {
		t.Errorf("another goroutine had its turn after %s", took)
	}
}

// feederMost is how long a feeder goes on at most.
const feederMost = 2 * time.Second

// feeder asks the server again whenever it is asked, by system calls of which the runtime is not told.
type feeder struct {
	echo
	toServer, toOther int // sockets
	begun             time.Time
	turns             chan time.Time
	over              atomic.Bool
}

func (f *feeder) Answer(b []byte, q *hit.Question) ([]byte, query.Level, bool) {
	write := func(fd int) {
		_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&q.Wire[0])), uintptr(len(q.Wire)))
	}
	if f.begun.IsZero() {
		f.begun = time.Now()
		f.turns <- f.begun
		write(f.toOther)
	}
	if !f.over.Load() && time.Since(f.begun) < feederMost {
		write(f.toServer)
	}
	return f.echo.Answer(b, q)
}

// connected is a UDP socket to a server, which nobody reads.
func connected(t *testing.T, server string) (fd int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	at, err := net.ResolveUDPAddr("udp", server)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: at.Port, Addr: [4]byte(at.IP.To4())}); err != nil {
		t.Fatal(err)
	}
	return fd
}
