package forward

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// The network of the unit tests is in memory, so that it runs on virtual time. For the package it behaves like Linux's:
// TestFaultsOfTheKernel has the same faults with real sockets.

// hosts are the servers of the network, by address.
var (
	hosts    sync.Map // of *host
	lastHost atomic.Int32
	openEnds atomic.Int32 // number of the clients' open ends
)

// host is one server of the network.
type host struct {
	addr string

	mu       sync.Mutex                  // guards the fields below, and is held during datagram
	datagram func(from *end, msg []byte) // nil: the kernel refuses
	accept   func(c *end)                // runs in a goroutine; nil: the kernel refuses
	dropSYN  bool                        // the queue of connections is full
	running  sync.WaitGroup
}

func newHost(t testing.TB) *host {
	t.Helper()
	n := lastHost.Add(1)
	h := &host{addr: fmt.Sprintf("198.18.%d.%d:53", n>>8, n&255)}
	hosts.Store(h.addr, h)
	t.Cleanup(func() {
		hosts.Delete(h.addr)
		h.set(func() { h.datagram, h.accept = nil, nil })
		h.running.Wait()
	})
	return h
}

// set changes what the host does.
func (h *host) set(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

// connectInMemory is connect on the network of the tests.
func connectInMemory(ctx context.Context, network, addr string, _ int) (net.Conn, error) {
	fails := func(err error) error { return &net.OpError{Op: "dial", Net: network, Err: err} }
	found, ok := hosts.Load(addr)
	if !ok {
		return nil, fails(os.NewSyscallError("connect", syscall.EHOSTUNREACH))
	}
	h := found.(*host)
	if network == "udp" {
		openEnds.Add(1)
		return &end{host: h, counted: true, changed: make(chan struct{})}, nil
	}
	for wait := time.Second; ; wait *= 2 { // Linux sends the next SYN after 1 s, 2 s, 4 s
		h.mu.Lock()
		drop, accept := h.dropSYN, h.accept
		switch {
		case ctx.Err() != nil:
			h.mu.Unlock()
			return nil, fails(ctx.Err())
		case drop:
		case accept == nil:
			h.mu.Unlock()
			return nil, fails(os.NewSyscallError("connect", syscall.ECONNREFUSED))
		default:
			defer h.mu.Unlock()
			near, far := &end{stream: true, changed: make(chan struct{})}, &end{stream: true, changed: make(chan struct{})}
			near.peer, far.peer = far, near
			near.counted = true
			openEnds.Add(1)
			h.running.Go(func() { // ends with the connection
				defer far.Close()
				accept(far)
			})
			return near, nil
		}
		h.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// end is one end of a connection.
type end struct {
	stream bool
	peer   *end  // of a stream
	host   *host // of datagrams

	counted bool // in openEnds

	mu       sync.Mutex // guards the fields below
	in       [][]byte
	err      error // the network's error
	eof      bool
	closed   bool
	deadline time.Time
	changed  chan struct{} // closed at the next change
}

// change makes a change, and wakes the readers.
func (e *end) change(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
	close(e.changed)
	e.changed = make(chan struct{})
}

// deliver makes the end receive b.
func (e *end) deliver(b []byte) { e.change(func() { e.in = append(e.in, append([]byte(nil), b...)) }) }

// reply makes the end receive a message as a datagram.
func (e *end) reply(m *dns.Msg) {
	wire, _ := m.Pack()
	e.deliver(wire)
}

// reject makes the end receive an ICMP error. err is what Linux returns for it.
func (e *end) reject(err error) { e.change(func() { e.err = err }) }

// fault is the error that reads and writes have now, if any.
func (e *end) fault(op string) error {
	fails := func(err error) error { return &net.OpError{Op: op, Err: err} }
	switch {
	case e.closed:
		return fails(net.ErrClosed)
	case !e.deadline.IsZero() && !time.Now().Before(e.deadline):
		return fails(os.ErrDeadlineExceeded)
	case e.err != nil:
		err := e.err
		if !e.stream {
			e.err = nil // it is reported once
		}
		return fails(os.NewSyscallError(op, err))
	}
	return nil
}

func (e *end) Read(b []byte) (int, error) {
	for {
		e.mu.Lock()
		if err := e.fault("read"); err != nil {
			e.mu.Unlock()
			return 0, err
		}
		if len(e.in) > 0 {
			n := copy(b, e.in[0])
			if e.in[0] = e.in[0][n:]; !e.stream || len(e.in[0]) == 0 {
				e.in = e.in[1:]
			}
			e.mu.Unlock()
			return n, nil
		}
		if e.eof {
			e.mu.Unlock()
			return 0, io.EOF
		}
		changed, deadline := e.changed, e.deadline
		e.mu.Unlock()
		if deadline.IsZero() {
			<-changed
			continue
		}
		timer := time.NewTimer(time.Until(deadline))
		select {
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (e *end) Write(b []byte) (int, error) {
	e.mu.Lock()
	err := e.fault("write")
	e.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if e.stream {
		e.peer.deliver(b)
		return len(b), nil
	}
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	if e.host.datagram == nil {
		e.reject(syscall.ECONNREFUSED)
	} else {
		e.host.datagram(e, append([]byte(nil), b...))
	}
	return len(b), nil
}

func (e *end) Close() error {
	e.change(func() {
		if e.counted && !e.closed {
			openEnds.Add(-1)
		}
		e.closed = true
	})
	if e.stream {
		e.peer.change(func() { e.peer.eof = true })
	}
	return nil
}

// reset closes a stream by RST.
func (e *end) reset() {
	e.change(func() { e.closed = true })
	e.peer.change(func() { e.peer.err = syscall.ECONNRESET })
}

func (e *end) SetDeadline(t time.Time) error {
	e.change(func() { e.deadline = t })
	return nil
}
func (e *end) SetReadDeadline(t time.Time) error { return e.SetDeadline(t) }
func (e *end) SetWriteDeadline(time.Time) error  { return nil }
func (e *end) LocalAddr() net.Addr               { return &net.UDPAddr{} }
func (e *end) RemoteAddr() net.Addr              { return &net.UDPAddr{} }

// named stands for a subtest, because a bubble of synctest can have none.
type named struct {
	testing.TB
	name string
}

func (n named) Errorf(format string, args ...any) {
	n.Helper()
	n.TB.Errorf("%s: %s", n.name, fmt.Sprintf(format, args...))
}

func (n named) Error(args ...any) { n.Helper(); n.TB.Errorf("%s: %s", n.name, fmt.Sprint(args...)) }

func (n named) Fatalf(format string, args ...any) {
	n.Helper()
	n.TB.Fatalf("%s: %s", n.name, fmt.Sprintf(format, args...))
}

func (n named) Fatal(args ...any) { n.Helper(); n.TB.Fatalf("%s: %s", n.name, fmt.Sprint(args...)) }
