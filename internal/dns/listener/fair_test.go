package listener

import (
	"log/slog"
	"net"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/queryinfo"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestReaderGivesWay: on one processor, a reader that always finds a query does not keep other goroutines from running. The test itself
// must not wake the runtime's monitor: the first query comes from another process, each further one from the handler that answers, and all
// goroutines wait in the poller without a deadline.
func TestReaderGivesWay(t *testing.T) {
	testutil.RequireRoot(t) // it starts a process
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	waits, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	testutil.Must(t, err)
	defer waits.Close()
	cfg := configOf(t)
	again := &feeder{toServer: connected(t, addressOf(cfg)), toOther: connected(t, waits.LocalAddr().String())}
	s := New(slog.New(slog.DiscardHandler), nil)
	testutil.Must(t, s.Start(t.Context(), cfg, (&handler{do: answer, first: again}).build, nil))
	defer func() {
		again.over.Store(true)
		testutil.Check(t, s.Stop())
	}()

	q := testutil.Packed(t, question("a.example.org.", dns.TypeA))
	var text strings.Builder
	for _, c := range q {
		text.WriteString(`\x` + strconv.FormatUint(uint64(c)|0x100, 16)[1:])
	}
	// Wait first, so that the monitor goes to sleep because nothing runs.
	cmd := exec.Command("bash", "-c", "sleep 0.3; printf '"+text.String()+"' > /dev/udp/127.0.0.1/"+strconv.Itoa(int(cfg.Port)))
	testutil.Must(t, cmd.Start())
	defer cmd.Wait() //nolint:errcheck // it has done its part, or the read below fails
	_, err = waits.Read(make([]byte, 1))
	testutil.Must(t, err)
	again.over.Store(true)
	if n := again.turns.Load(); n >= feederMost {
		t.Errorf("another goroutine had no turn before query %d", n)
	}
}

// feederMost is how often a feeder queries again: enough for many times the 10 ms after which the runtime preempts a goroutine.
const feederMost = 500_000

// feeder queries the server again whenever it is queried, by system calls that the runtime does not see.
type feeder struct {
	echo
	toServer, toOther int // sockets
	turns             atomic.Int64
	over              atomic.Bool
}

func (f *feeder) Answer(b []byte, q *fastpath.Query) ([]byte, queryinfo.Level, bool) {
	write := func(fd int) {
		_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&q.Wire[0])), uintptr(len(q.Wire)))
	}
	turn := f.turns.Add(1)
	if turn == 1 {
		write(f.toOther)
	}
	if !f.over.Load() && turn < feederMost {
		write(f.toServer)
	}
	return f.echo.Answer(b, q)
}

// connected is a UDP socket to a server, which no program reads.
func connected(t *testing.T, server string) (fd int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	testutil.Must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	at, err := net.ResolveUDPAddr("udp", server)
	testutil.Must(t, err)
	testutil.Must(t, unix.Connect(fd, &unix.SockaddrInet4{Port: at.Port, Addr: [4]byte(at.IP.To4())}))
	return fd
}
