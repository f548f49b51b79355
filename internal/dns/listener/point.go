package listener

import (
	"context"
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

	"github.com/neardns/neardns/internal/dns/fairshare"
	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/resourceerr"
)

// Times of a point's end.
const (
	flushLeast = 50 * time.Millisecond // what the switch let through before the lease went is in the socket by then
	flushMost  = time.Second
	flushLook  = 5 * time.Millisecond
	idleMost   = time.Second     // an open connection that asks nothing for so long is closed when its server ends
	drainMost  = 5 * time.Second // CoreDNS's own grace; a miss takes 4.5 s at most
	cutMost    = 2 * time.Second
)

// Times of a connection, which are CoreDNS's own: of its first question, of one answer, and between questions. How many questions
// may come over it has no bound.
const (
	readMost    = 3 * time.Second
	writeMost   = 5 * time.Second
	betweenMost = 10 * time.Second
)

// point is one open socket, an address and protocol, and whoever answers there. It owns the socket, the moment at which it reads and
// the ends of its connections: a chain comes and goes behind it. Over TCP it reads with the DNS library's server, as CoreDNS does.
type point struct {
	protocol string // udp, tcp
	at       netip.AddrPort
	log      *slog.Logger
	socket   socket
	server   *dns.Server // over TCP
	udp      *datagrams  // over UDP
	observer Observer    // nil: nobody
	workers  *workers
	chain    atomic.Pointer[led]
	pauser   pauser
	quota    *quota
	conns    streams
	ended    chan struct{} // closed when nothing is read or answered here any more
}

// socket is a *net.UDPConn or a *net.TCPListener.
type socket interface {
	io.Closer
	syscall.Conn
	File() (*os.File, error)
}

func (s *Server) newPoint(protocol string, at netip.AddrPort, f *os.File) (*point, error) {
	p := &point{protocol: protocol, at: at, log: s.log, observer: s.observer, workers: s.workers, quota: s.quota,
		conns: streams{quota: s.quota}, ended: make(chan struct{})}
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
	p.server = &dns.Server{Net: protocol, Handler: p, Listener: acceptor{listener, p}, MaxTCPQueries: -1,
		ReadTimeout: readMost, IdleTimeout: func() time.Duration { return betweenMost },
		DecorateReader: func(r dns.Reader) dns.Reader { return &reader{Reader: r, p: p} }}
	return p, nil
}

// serve reads and answers until end. It returns once the point reads; gone is called at its end.
func (p *point) serve(c *serving, gone func()) {
	p.lead(c)
	started := make(chan struct{})
	begun := sync.OnceFunc(func() { close(started) })
	go func() { // ends with the socket
		if err := p.read(begun); err != nil && !errors.Is(err, net.ErrClosed) {
			p.log.Error("a socket died", "protocol", p.protocol, "addr", p.at, "err", err)
		}
		begun()
		close(p.ended)
		gone()
	}()
	<-started
}

// read reads and answers until the point ends, or its socket dies. begun is called as soon as it does.
func (p *point) read(begun func()) error {
	if conn, ok := p.socket.(*net.UDPConn); ok {
		defer conn.Close()
		p.quota.overflows.watch(conn)
		defer p.quota.overflows.leave(conn)
		begun()
		return p.udp.serve()
	}
	p.server.NotifyStartedFunc = begun
	return p.server.ActivateAndServe()
}

// bufferBytes is what a UDP socket may hold unread, as the kernel counts: about 5,400 questions, 270 ms of a flood of 20,000 a
// second. Linux gives 208 KiB by default (net.core.rmem_default), 13 ms: less than some time slices of other processes. A
// starved agent does not answer from so long a queue for long: its probes stand in it, too, and late answers cost the lease.
const bufferBytes = 4 << 20

// widen gives a socket its buffer. Best effort: where the capability is missing, net.core.rmem_max bounds it.
func widen(conn *net.UDPConn) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		const given = bufferBytes / 2 // the kernel doubles it (socket(7))
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, given) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, given)
		}
	})
}

// led is a chain, and who stands before it at a point.
type led struct {
	*serving
	first fastpath.Handler // nil: nothing
}

// lead has questions from now on answered by a chain.
func (p *point) lead(c *serving) { p.chain.Store(&led{c, c.chain.FastPath(p.at)}) }

// enter counts a question in at the chain; whoever calls it calls leave.
func (p *point) enter() *led {
	for {
		if c := p.chain.Load(); c.enter() {
			return c
		}
		// It was retired since: another is in its place already.
	}
}

// ServeDNS answers one question.
func (p *point) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	p.ask(fairshare.Client(w.RemoteAddr()), w, r)
}

func (p *point) ask(client netip.Addr, w dns.ResponseWriter, r *dns.Msg) {
	c := p.enter()
	defer c.leave()
	c.answer(p.observer, p.at, client, w, r)
}

// until bounds the read that is going on. A datagram's answer may still be written.
func (p *point) until(t time.Time) {
	// An error: the socket is closed, and nobody reads.
	switch s := p.socket.(type) {
	case *net.UDPConn:
		_ = s.SetReadDeadline(t)
	case *net.TCPListener:
		_ = s.SetDeadline(t)
	}
}

// pause stops reading and accepting until resume; what comes stays in the socket. Open connections go on.
func (p *point) pause() {
	p.pauser.shut()
	p.until(time.Now()) // wakes who reads
}

func (p *point) resume() {
	p.until(time.Time{})
	p.pauser.open()
}

// flush waits until what came before has been read. The caller has seen to it that nothing more comes.
func (p *point) flush() {
	begun := time.Now()
	tick := time.NewTicker(flushLook)
	defer tick.Stop()
	for {
		<-tick.C
		took := time.Since(begun)
		if took >= flushMost || took >= flushLeast && p.waiting() == 0 {
			return
		}
	}
}

// waiting tells how much lies in the socket unread: bytes, or connections to accept.
func (p *point) waiting() (n int) {
	raw, err := p.socket.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { // an error: the socket is closed, and nothing waits
		if p.protocol == "udp" {
			n, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ)
			return
		}
		// Of a listening socket, tcpi_unacked is the length of its accept queue (tcp_get_info, Linux 2.6.18).
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO); err == nil {
			n = int(info.Unacked)
		}
	})
	return n
}

// end stops reading and accepting for good, answers what was read, and closes each connection right after an answer, when
// its client has least reason to be asking, or when it has been idle for a second. It reports an error if some had to be
// cut. What is unread stays in the socket for other processes that have it.
func (p *point) end() error {
	p.pauser.end()
	if p.protocol == "tcp" {
		// Now: the library would close it after the last connection, and let more of them queue up meanwhile.
		_ = p.socket.Close()
	}
	tick := time.NewTicker(idleMost / 10)
	defer tick.Stop()
	for begun := time.Now(); time.Since(begun) < drainMost; {
		p.conns.drain(begun.Add(idleMost))
		if p.protocol == "udp" {
			p.until(time.Now()) // again: a pause that ends just now takes the deadline back
		}
		select {
		case <-p.ended:
			return nil
		case <-tick.C:
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), cutMost)
	defer cancel()
	if p.server != nil {
		_ = p.server.ShutdownContext(ctx) // how it went is seen below
	}
	_ = p.socket.Close()
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s %s is still served after %s", p.protocol, p.at, drainMost+cutMost)
	}
}

// reader stands between the library and a connection: it sees where one question ends and the next begins. One goroutine uses it.
type reader struct {
	dns.Reader
	p      *point
	query  fastpath.Query
	answer []byte // of whoever stands before the chain
}

// questionMostTCP is how much of a question over TCP is looked at. What is longer is cut, and invalid, as over UDP: the library would take
// 64 KiB of each connection that announces so much.
const questionMostTCP = 4096

// answerKept is the room for an answer that a connection keeps for the next one: that of common answers.
const answerKept = 4096

// ReadTCP answers questions, at once or by workers, until there is one that the library is to deal with before the next one is read, or
// the connection ends.
func (r *reader) ReadTCP(conn net.Conn, timeout time.Duration) ([]byte, error) {
	s, ok := conn.(*stream)
	if !ok {
		return nil, fmt.Errorf("the connection is a %T", conn)
	}
	for {
		m, err := s.next(timeout)
		if err != nil {
			s.pending.Wait() // a client may say that it asks no more, and wait for its answers
			return nil, err
		}
		done, err := r.first(s, m)
		if err != nil {
			s.pending.Wait()
			return nil, err
		}
		if !done && !r.p.pipe(s, m) {
			return m, nil
		}
		timeout = betweenMost
	}
}

// next reads one question, or says that the connection ends here.
func (s *stream) next(timeout time.Duration) ([]byte, error) {
	goes, ends := s.of.await(s)
	switch {
	case !goes:
		return nil, io.EOF
	case ends:
		timeout = min(timeout, idleMost)
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
	m := make([]byte, min(int(binary.BigEndian.Uint16(size[:])), questionMostTCP))
	if _, err := io.ReadFull(s.TCPConn, m); err != nil {
		return nil, err
	}
	_, err := io.CopyN(io.Discard, s.TCPConn, int64(binary.BigEndian.Uint16(size[:]))-int64(len(m)))
	return m, err
}

// first has whoever stands before the chain answer a question, and reports whether it did.
func (r *reader) first(s *stream, m []byte) (done bool, err error) {
	c := r.p.enter()
	var answer []byte
	ok := false
	if c.first != nil {
		r.query.Wire, r.query.Client, r.query.TCP, r.query.Received = m, s.source, true, time.Now()
		answer, ok = r.p.before(c.first, append(r.answer[:0], 0, 0), &r.query)
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

// acceptor accepts a point's connections.
type acceptor struct {
	*net.TCPListener
	p *point
}

// Accept gives up only where the listener is closed, or cannot be one any more. A shortage passes (of descriptors, of memory), and the
// library would ask anew at once and for ever, or let the listener go for good.
func (a acceptor) Accept() (net.Conn, error) {
	for failed := 0; ; {
		if !a.p.pauser.pass() {
			return nil, net.ErrClosed
		}
		conn, err := a.AcceptTCP()
		if err == nil {
			if s := a.p.conns.add(conn); s != nil {
				return s, nil
			}
			continue
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded): // a pause, or the end
			continue
		case errors.Is(err, unix.EINVAL) && listenAgain(a.TCPListener) == nil: // it was destroyed
			continue
		case errors.Is(err, net.ErrClosed), failed >= failedMost && !resourceerr.Is(err):
			return nil, err
		}
		if failed++; failed == acceptSaid {
			a.p.log.Warn("connections cannot be accepted, they wait", "addr", a.p.at, "err", err)
		}
		<-time.After(acceptAgain)
	}
}

// A connection that cannot be accepted waits in the kernel and is tried again; soon it is told of.
const (
	acceptAgain = 10 * time.Millisecond
	acceptSaid  = 50 // tries
)

// listenAgain has a listener listen that somebody destroyed (SOCK_DESTROY, by `ss -K`; of MPTCP the kernel destroys none). Its socket has
// the address still, listens no more, and is shut down, which its connections would inherit: a connect to nowhere undoes that
// (tcp_disconnect).
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

// backlog is how many connections may wait to be accepted; the kernel lowers it to net.core.somaxconn, as package net does.
const backlog = 1<<16 - 1
