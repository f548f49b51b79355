package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

var (
	older = Claim{Instance: "older", PID: 7, Version: "v1", Since: time.Unix(1e9, 0).UTC(), Born: 100}
	newer = Claim{Instance: "newer", PID: 8, Pod: "neardns-x7k2p", Version: "v2", Since: time.Unix(1e9+60, 0).UTC(), Born: 200}
	at    = netip.MustParseAddrPort("169.254.20.11:53")
)

// unhurried are limits that no test reaches: what comes, comes on any machine.
var unhurried = waits{ages, ages, ages, ages, ages, ages, ages}

const ages = time.Hour

func unhurriedTaker(s Successor) *taker {
	return &taker{log: slog.New(slog.DiscardHandler), successor: s, waits: unhurried}
}

// side is a holder and a successor at once: it records the requests that it gets and fails where the test wants.
type side struct {
	mu    sync.Mutex
	calls []string
	fails string // the call that fails
	hook  map[string]func()

	claim  Claim
	lock   *os.File
	pipe   *os.File // what stands for a socket
	ended  chan error
	opened []Socket
}

func (s *side) call(name string) error {
	s.mu.Lock()
	s.calls = append(s.calls, name)
	hook, fails := s.hook[name], s.fails == name
	s.mu.Unlock()
	if hook != nil {
		hook()
	}
	return testutil.ErrorIf(fails, "%s fails", name)
}

func (s *side) log() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

func (s *side) Claim() Claim   { return s.claim }
func (s *side) Lock() *os.File { return s.lock }
func (s *side) Sockets() ([]Socket, error) {
	if err := s.call("sockets"); err != nil {
		return nil, err
	}
	fd, err := unix.FcntlInt(s.pipe.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	return []Socket{{Protocol: "udp", Address: at, File: os.NewFile(uintptr(fd), "copy")}}, err
}

func (s *side) AcceptSuccessor(Claim) (func(), error) {
	return func() { _ = s.call("apart") }, s.call("accepted")
}

func (s *side) Yield(_ context.Context, _ Claim, addresses []netip.Addr) (func(bool), error) {
	if len(addresses) != 1 || addresses[0] != at.Addr() {
		return nil, fmt.Errorf("asked to prove %v", addresses)
	}
	return func(taken bool) { _ = s.call(fmt.Sprintf("decided %t", taken)) }, s.call("yield")
}

func (s *side) StepDown(c Claim) { _ = s.call("step-down " + c.Instance) }

func (s *side) Done(_ Claim, _ time.Duration, err error) { s.ended <- err }

func (s *side) Serve(_ context.Context, holder Claim, sockets []Socket) ([]netip.Addr, error) {
	s.opened = sockets
	if holder.Instance != older.Instance || len(sockets) != 1 {
		return nil, fmt.Errorf("from %v: %v", holder, sockets)
	}
	return []netip.Addr{sockets[0].Address.Addr()}, s.call("serve")
}

func (s *side) Abandon() { _ = s.call("abandon") }

func (s *side) close() {
	for _, o := range s.opened {
		_ = o.File.Close()
	}
}

// rig is a holder that gives at a socket.
type rig struct {
	path   string
	holder *side
	given  chan bool
	log    testutil.Output // the holder's
	end    context.CancelFunc
}

func newRig(t *testing.T, set ...func(*rig)) *rig {
	t.Helper()
	r := &rig{path: filepath.Join(t.TempDir(), "handover.sock"), given: make(chan bool, 1)}
	read, write, err := os.Pipe()
	testutil.Must(t, err)
	lock, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	testutil.Must(t, err)
	r.holder = &side{claim: older, lock: lock, pipe: write, hook: map[string]func(){}, ended: make(chan error, 8)}
	for _, f := range set {
		f(r)
	}
	l, err := Listen(r.path)
	testutil.Must(t, err)
	ctx, end := context.WithCancel(context.Background())
	r.end = end
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.given <- (&giver{log: slog.New(slog.NewTextHandler(&r.log, nil)), agent: r.holder, waits: unhurried}).run(ctx, l)
	}()
	t.Cleanup(func() {
		end()
		<-done
		read.Close()
		write.Close()
		lock.Close()
	})
	return r
}

func (r *rig) take(s *side, claim Claim) (*Taken, error) {
	return unhurriedTaker(s).run(context.Background(), r.path, claim)
}

// takeNext requests the handover until the holder has finished with the previous successor, as an agent does.
func (r *rig) takeNext(t *testing.T, s *side) {
	t.Helper()
	for {
		taken, err := r.take(s, newer)
		var refused *RefusedError
		switch {
		case err == nil:
			taken.Lock.Close()
			return
		case !errors.As(err, &refused) || !refused.Later:
			t.Fatalf("the next successor: %v", err)
		}
	}
}

func (r *rig) dial(t *testing.T) *conn {
	t.Helper()
	raw, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: r.path, Net: "unixpacket"})
	testutil.Must(t, err)
	c, err := newConn(raw)
	testutil.Must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func (c *conn) passOffer(t *testing.T) {
	t.Helper()
	files, err := c.receive(ages, kindOffer, new(offer))
	closeFiles(files)
	for err == nil {
		_, err = c.receive(ages, kindCache, new([]byte))
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

// pair returns both ends of a connection.
func pair(t *testing.T) (ours, theirs *conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	testutil.Must(t, err)
	end := func(fd int) *conn {
		f := os.NewFile(uintptr(fd), "pair")
		defer f.Close()
		raw, err := net.FileConn(f)
		testutil.Must(t, err)
		c, err := newConn(raw.(*net.UnixConn))
		testutil.Must(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	return end(fds[0]), end(fds[1])
}
