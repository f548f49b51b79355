package listener

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// visit returns a connection with the fields that the quota uses.
func visit(of *streams, source byte) *stream {
	return &stream{of: of, source: netip.AddrFrom4([4]byte{10, 244, 0, source})}
}

// TestWhoGoes: if a client has its share, its new connection replaces its longest idle one, never one with a query in progress.
// Another client's connection is replaced only if that client has more connections.
func TestWhoGoes(t *testing.T) {
	q := newQuota(Config{Connections: 8})
	of := &streams{quota: q}
	enter := func(source byte) (s, victim *stream, ok bool) {
		s = visit(of, source)
		victim, ok = q.enter(s)
		return s, victim, ok
	}
	var own []*stream
	for i := range 4 {
		s, victim, ok := enter(1)
		if victim != nil || !ok {
			t.Fatalf("connection %d: in %t, instead of %v", i, ok, victim)
		}
		own = append(own, s)
	}
	goes := func(want *stream) {
		t.Helper()
		s, victim, ok := enter(1)
		if own = append(own, s); !ok || victim != want {
			t.Errorf("in %t, instead of connection %d; want %d", ok, slices.Index(own, victim), slices.Index(own, want))
		}
	}
	goes(own[0])     // the oldest, although no reader has begun with it
	of.await(own[1]) // it is among those that wait already
	of.heard(own[1]) // its query is in work
	goes(own[2])
	of.begin(own[3]) // a worker has its query, and the next one is awaited
	of.heard(own[3])
	of.await(own[3])
	goes(own[4])
	of.done(own[3])
	goes(own[5])
	goes(own[6])
	goes(own[3]) // now it is idle, and the one after those

	q = newQuota(Config{Connections: 2})
	of = &streams{quota: q}
	busy, _, _ := enter(1)
	of.heard(busy)
	if _, _, ok := enter(2); !ok {
		t.Fatal("the second source has no place")
	}
	if _, victim, ok := enter(1); ok || victim != nil {
		t.Error("a source takes the place of one that has no more than it")
	}
	if _, victim, ok := enter(3); !ok || victim == nil || victim == busy {
		t.Error("a new source has no place where another's connection is idle")
	}
}

// TestIdleWorkers: after a burst only some workers stay.
func TestIdleWorkers(t *testing.T) {
	w := new(workers)
	release := make(chan struct{})
	var done sync.WaitGroup
	for range 3 * idleWorkers {
		done.Add(1)
		w.do(work(func() { <-release; done.Done() }))
	}
	close(release)
	done.Wait()
	testutil.WaitFor("the workers rest", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.idle) >= idleWorkers
	})
	w.mu.Lock()
	testutil.Equal(t, "workers that stay", idleWorkers, len(w.idle))
	w.mu.Unlock()
	w.dismiss()
}

type work func()

func (f work) serve() { f() }

// TestRetire: a chain is closed when it has no query in progress any more, or when its time is over.
func TestRetire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := new(handler)
		s := newServing(h)
		if !s.enter() {
			t.Fatal("nobody may enter")
		}
		retired := make(chan error, 1)
		go func() { retired <- s.retire(time.Minute, false) }()
		synctest.Wait()
		select {
		case err := <-retired:
			t.Fatalf("it did not wait for its question: %v", err)
		default:
		}
		if h.closed.Load() != 0 {
			t.Error("closed with a question in work")
		}
		s.leave()
		if err := <-retired; err != nil || h.closed.Load() != 1 {
			t.Errorf("closed %d times: %v", h.closed.Load(), err)
		}
		if s.enter() {
			t.Error("a chain that is closed is entered")
		}
		late := newServing(h)
		late.enter()
		if err := late.retire(time.Millisecond, false); err != nil || h.closed.Load() != 2 {
			t.Errorf("a question that never ends: closed %d times, %v", h.closed.Load(), err)
		}
	})
}

// TestVainRestartLeavesNoSocket: if the next chain cannot be made, the sockets that were opened for it are closed.
func TestVainRestartLeavesNoSocket(t *testing.T) {
	s, cfg := start(t, answer)
	next := cfg.clone()
	next.Addresses = append(next.Addresses, netip.MustParseAddr("127.0.0.2"))
	broken := errors.New("broken")
	if err := s.Restart(context.Background(), next, func(Chain) (Chain, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Fatalf("restarted: %v", err)
	}
	at := netip.AddrPortFrom(next.Addresses[1], cfg.Port).String()
	udp, err := net.ListenPacket("udp", at)
	if err != nil {
		t.Errorf("a socket is left: %v", err)
	} else {
		udp.Close()
	}
	tcp, err := net.Listen("tcp", at)
	if err != nil {
		t.Errorf("a listener is left: %v", err)
	} else {
		tcp.Close()
	}
	testutil.Exchange(t, "udp", addressOf(cfg), question("a.example.org.", dns.TypeA))
}
