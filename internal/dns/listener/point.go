package listener

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/resourceerr"
)

// Times of a point's end.
const (
	minFlush  = 50 * time.Millisecond  // by then, queries that the switch let through before the lease was withdrawn have reached the socket
	maxFlush  = time.Second            // flush then returns even if queries still wait in the socket
	flushLook = 5 * time.Millisecond   // how often flush checks whether queries wait
	endLook   = 100 * time.Millisecond // how often end checks for connections whose last query is answered
	maxDrain  = 5 * time.Second        // for the queries in progress, as in CoreDNS; package forward takes 4.5 s at most
	maxCut    = 2 * time.Second        // after maxDrain, for closing what is still open; in Stop, also for the plugin chain's last queries
)

// maxWrite is the time limit for writing an answer over TCP, as in CoreDNS.
const maxWrite = 5 * time.Second

// limits are the times after which a TCP connection without a query is closed.
type limits struct {
	first, next time.Duration // before its first query, and between queries
	end         time.Duration // when the point ends
}

// usualLimits has the limits of CoreDNS for as long as the point is served. The number of queries on a connection is not limited.
var usualLimits = limits{first: 3 * time.Second, next: 10 * time.Second, end: time.Second}

// point is a listening socket, for one address and protocol, with the plugin chain that answers its queries. The point stays while one
// chain replaces another. It owns the socket and its connections.
type point struct {
	protocol string // udp, tcp
	at       netip.AddrPort
	log      *slog.Logger
	socket   socket
	udp      *datagrams // over UDP
	observer Observer   // nil: none
	workers  *workers
	chain    atomic.Pointer[led]
	pauser   pauser
	quota    *quota
	conns    streams
	ended    chan struct{} // closed when the point has ended
}

// socket is a *net.UDPConn or a *net.TCPListener.
type socket interface {
	io.Closer
	syscall.Conn
	File() (*os.File, error)
}

func (s *Server) newPoint(protocol string, at netip.AddrPort, f *os.File) (*point, error) {
	p := &point{protocol: protocol, at: at, log: s.log, observer: s.observer, workers: s.workers, quota: s.quota,
		conns: streams{quota: s.quota, limits: s.limits}, ended: make(chan struct{})}
	if protocol == "udp" {
		pc, err := net.FilePacketConn(f)
		if err != nil {
			return nil, err
		}
		conn, ok := pc.(*net.UDPConn)
		if !ok {
			return nil, errors.Join(fmt.Errorf("the socket is a %T", pc), pc.Close())
		}
		widen(conn)
		if p.udp, err = newDatagrams(p, conn); err != nil {
			return nil, errors.Join(err, pc.Close())
		}
		p.socket = conn
		return p, nil
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	listener, ok := l.(*net.TCPListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("the socket is a %T", l), l.Close())
	}
	p.socket = listener
	return p, nil
}

// serve starts to read and answer queries in the background, until the point ends or its socket is dead. gone is called when the point has
// ended.
func (p *point) serve(c *serving, gone func()) {
	p.lead(c)
	go func() { // ends with the socket
		if err := p.read(); err != nil && !errors.Is(err, net.ErrClosed) {
			p.log.Error("listening socket failed and is closed; other sockets stay", "protocol", p.protocol, "addr", p.at, "err", err)
		}
		gone() // first: once ended is closed, Stop returns, and Done's channel must be closed by then
		close(p.ended)
	}()
}

// read reads and answers queries until the point ends or its socket is dead.
func (p *point) read() error {
	defer p.socket.Close()
	if listener, ok := p.socket.(*net.TCPListener); ok {
		return p.accept(listener)
	}
	return p.udp.serve()
}

// bufferBytes is the size of a UDP socket's receive buffer, as the kernel counts: about 5,400 queries, or 270 ms of 20,000 queries a
// second. Linux's default of 208 KiB (net.core.rmem_default) is 14 ms, less than some time slices of other processes. An agent that gets no
// CPU does not answer from so long a queue for long: its probes wait in it too, and if they are late the lease expires.
const bufferBytes = 4 << 20

// widen sets a UDP socket's receive buffer to bufferBytes. Without CAP_NET_ADMIN, net.core.rmem_max limits it.
func widen(conn *net.UDPConn) {
	control(conn, func(fd int) {
		const given = bufferBytes / 2 // the kernel doubles it (socket(7))
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, given) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, given)
		}
	})
}

// control calls f with a socket's descriptor, unless the socket is closed.
func control(socket syscall.Conn, f func(fd int)) {
	if raw, err := socket.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}

// led is a plugin chain with its fast path for the point's address.
type led struct {
	*serving
	first fastpath.Handler // nil: there is no fast path
}

// lead makes the plugin chain c answer all further queries of the point.
func (p *point) lead(c *serving) { p.chain.Store(&led{c, c.chain.FastPath(p.at)}) }

// enter returns the point's plugin chain, and counts a use of it. The caller must call leave.
func (p *point) enter() *led {
	for {
		if c := p.chain.Load(); c.enter() {
			return c
		}
		// The chain was retired after Load returned it. Another chain has replaced it, so load again.
	}
}

func (p *point) answer(client netip.Addr, w dns.ResponseWriter, r *dns.Msg) {
	c := p.enter()
	defer c.leave()
	c.answer(p.observer, p.at, client, w, r)
}

// until sets the deadline for reading from the socket, or for accepting connections. Answers can still be written.
func (p *point) until(t time.Time) {
	// Errors are ignored: the socket is closed, so nothing reads it.
	switch s := p.socket.(type) {
	case *net.UDPConn:
		_ = s.SetReadDeadline(t)
	case *net.TCPListener:
		_ = s.SetDeadline(t)
	}
}

// pause stops reading and accepting until resume. Queries wait in the socket meanwhile. Open connections are still served.
func (p *point) pause() {
	p.pauser.shut()
	p.until(time.Now()) // wakes the reader
}

func (p *point) resume() {
	p.until(time.Time{})
	p.pauser.open()
}

// flush waits until all queries or connections that wait in the socket have been read or accepted: at least minFlush, at most maxFlush.
func (p *point) flush() {
	begun := time.Now()
	tick := time.NewTicker(flushLook)
	defer tick.Stop()
	for {
		<-tick.C
		took := time.Since(begun)
		if took >= maxFlush || took >= minFlush && p.waiting() == 0 {
			return
		}
	}
}

// waiting returns the size of the next UDP query in the socket, or the number of connections to accept; 0 if nothing waits.
func (p *point) waiting() (n int) {
	control(p.socket, func(fd int) {
		if p.protocol == "udp" {
			n, _ = unix.IoctlGetInt(fd, unix.SIOCINQ)
			return
		}
		// For a listening socket, tcpi_unacked is the length of the accept queue (tcp_get_info).
		if info, err := unix.GetsockoptTCPInfo(fd, unix.SOL_TCP, unix.TCP_INFO); err == nil {
			n = int(info.Unacked)
		}
	})
	return n
}

// end stops reading UDP queries and accepting connections for good, and answers the queries that were read. It closes each TCP connection
// once all queries that have arrived on it are answered, after limits.end if no query comes, or after maxDrain in any case. It returns an
// error if the point is still served after maxDrain and maxCut. What is not read or accepted stays in the socket for another process that
// has it.
func (p *point) end() error {
	p.pauser.end()
	if p.protocol == "tcp" {
		// Close it now, not after the last connection: more clients would connect meanwhile.
		_ = p.socket.Close()
	}
	tick := time.NewTicker(endLook)
	defer tick.Stop()
	begun := time.Now()
	for time.Since(begun) < maxDrain {
		p.conns.drain(begun.Add(p.conns.limits.end), false)
		if p.protocol == "udp" {
			p.until(time.Now()) // repeated, because a concurrent resume would reset the deadline
		}
		select {
		case <-p.ended:
			return nil
		case <-tick.C:
		}
	}
	// A client that always has queries on their way would keep its connection, and so the point, without end.
	p.conns.drain(time.Now(), true)
	_ = p.socket.Close()
	select {
	case <-p.ended:
		return nil
	case <-time.After(maxCut):
		return fmt.Errorf("%s %s is still served after %s", p.protocol, p.at, maxDrain+maxCut)
	}
}

// reader reads a TCP connection's queries. Only one goroutine uses it.
type reader struct {
	p      *point
	query  fastpath.Query
	answer []byte // buffer for the fast path's answers
}

// maxQueryTCP is how many bytes of a TCP query are kept; the rest is read and dropped. A longer query is cut and so invalid, as over UDP.
// A client may announce 64 KiB.
const maxQueryTCP = 4096

// answerKept is the maximum size of an answer buffer that a connection keeps for the next answer. Common answers fit.
const answerKept = 4096

// read answers the queries of a connection, by the fast path or by workers, until the connection ends, and closes it.
func (r *reader) read(s *stream) {
	defer s.Close()
	defer s.pending.Wait() // a client may close its sending side and then wait for the answers
	for timeout := s.of.limits.first; ; timeout = s.of.limits.next {
		m, err := s.next(timeout)
		if err != nil {
			return
		}
		done, err := r.first(s, m)
		if err != nil {
			return
		}
		if !done {
			r.p.pipe(s, m)
		}
	}
}

// next reads one query. It returns an error if no whole query arrives in time, or if the connection ends or should end.
func (s *stream) next(timeout time.Duration) ([]byte, error) {
	goes, ends := s.of.await(s)
	switch {
	case !goes:
		return nil, io.EOF
	case ends:
		timeout = min(timeout, s.of.limits.end)
	}
	defer s.of.heard(s)
	if err := s.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	var size [2]byte
	if _, err := io.ReadFull(s.TCPConn, size[:]); err != nil {
		return nil, err
	}
	s.of.begins(s)
	m := make([]byte, min(int(binary.BigEndian.Uint16(size[:])), maxQueryTCP))
	if _, err := io.ReadFull(s.TCPConn, m); err != nil {
		return nil, err
	}
	_, err := io.CopyN(io.Discard, s.TCPConn, int64(binary.BigEndian.Uint16(size[:]))-int64(len(m)))
	return m, err
}

// first tries to answer the query by the fast path, and reports whether it did.
func (r *reader) first(s *stream, m []byte) (done bool, err error) {
	c := r.p.enter()
	var answer []byte
	ok := false
	if c.first != nil {
		r.query.Wire, r.query.Client, r.query.TCP, r.query.Received = m, s.source, true, time.Now()
		answer, ok = r.p.answerFast(c.first, append(r.answer[:0], 0, 0), &r.query)
	}
	c.leave()
	if !ok {
		return false, nil
	}
	binary.BigEndian.PutUint16(answer, uint16(len(answer)-2))
	if r.answer = answer; cap(answer) > answerKept {
		r.answer = nil
	}
	_, err = s.Write(answer)
	return true, err
}

// accept accepts connections until the point ends, or the listener is permanently broken. It returns when the last connection has ended. A
// shortage of descriptors or memory passes.
func (p *point) accept(l *net.TCPListener) error {
	var reading sync.WaitGroup
	defer reading.Wait()
	for failed := 0; p.pauser.pass(); {
		conn, err := l.AcceptTCP()
		if err == nil {
			failed = 0
			if s := p.conns.add(conn); s != nil {
				reading.Go(func() { (&reader{p: p}).read(s) })
			}
			continue
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded): // a pause, or the end
			continue
		case errors.Is(err, unix.EINVAL) && listenAgain(l) == nil: // another program had destroyed the socket
			continue
		case errors.Is(err, net.ErrClosed), failed >= maxFailures && !resourceerr.Is(err):
			_ = l.Close() // new clients are refused, however long old connections last
			return err
		}
		if failed++; failed == acceptLogged {
			p.log.Warn("cannot accept TCP connections; they wait, and are tried again", "addr", p.at, "err", err)
		}
		<-time.After(acceptRetry)
	}
	return nil
}

// If a connection cannot be accepted, it waits in the kernel, and accept tries again.
const (
	acceptRetry  = 10 * time.Millisecond
	acceptLogged = 50 // the 50th failure in a row is logged
)

// listenAgain repairs a listening socket that another program destroyed (SOCK_DESTROY, by `ss -K`; the kernel destroys no MPTCP
// listener). The socket is still bound, but it does not listen and is shut down, which new connections would inherit. A connect to
// AF_UNSPEC ends that state (tcp_disconnect).
func listenAgain(l *net.TCPListener) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	nowhere := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	if cerr := raw.Control(func(fd uintptr) {
		if _, _, errno := unix.Syscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&nowhere)), unix.SizeofSockaddrInet4); errno != 0 {
			err = errno
			return
		}
		err = unix.Listen(int(fd), backlog)
	}); cerr != nil {
		return cerr
	}
	return err
}

// backlog is the maximum of connections that wait to be accepted. The kernel lowers it to net.core.somaxconn, as for package net's
// listeners.
const backlog = 1<<16 - 1
