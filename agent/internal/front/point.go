package front

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

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/agent/internal/places"
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

// point is one open socket, an address and protocol, and whoever answers there. It reads with the DNS library's server,
// as CoreDNS does, but owns the socket, the moment at which it reads and the ends of its connections: a chain comes and
// goes behind it.
type point struct {
	protocol string // udp, tcp
	at       netip.AddrPort
	log      *slog.Logger
	socket   socket
	server   *dns.Server
	observer Observer // nil: nobody
	first    Answerer // nil: the chain is asked at once
	chain    atomic.Pointer[serving]
	gate     gate
	crowd    *crowd
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
	crowd := s.crowd
	p := &point{protocol: protocol, at: at, log: s.log, observer: s.observer, first: s.first, crowd: crowd,
		conns: streams{crowd: crowd}, ended: make(chan struct{})}
	p.server = &dns.Server{Net: protocol, Handler: p, DecorateReader: func(r dns.Reader) dns.Reader { return &reader{Reader: r, p: p} }}
	if protocol == "udp" {
		p.server.UDPSize = questionMost + tagSize
		// What the library refuses by itself never comes to ServeDNS, but was counted when it was read.
		p.server.MsgInvalidFunc = func(m []byte, _ error) { crowd.give(tagged(m)) }
		p.server.MsgAcceptFunc = func(h dns.Header) dns.MsgAcceptAction {
			action := dns.DefaultMsgAcceptFunc(h)
			if action != dns.MsgAccept {
				crowd.give(nobody())
			}
			return action
		}
		pc, err := net.FilePacketConn(f)
		if err != nil {
			return nil, err
		}
		conn, ok := pc.(*net.UDPConn)
		if !ok {
			return nil, errors.Join(fmt.Errorf("the socket is a %T", pc), pc.Close())
		}
		p.socket, p.server.PacketConn = conn, conn
		widen(conn)
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
	p.socket, p.server.Listener = listener, acceptor{listener, p}
	return p, nil
}

// serve reads and answers until end. It returns once the point reads; gone is called at its end.
func (p *point) serve(c *serving, gone func()) {
	p.chain.Store(c)
	p.server.ReadTimeout, p.server.WriteTimeout, p.server.MaxTCPQueries = readMost, writeMost, -1
	p.server.IdleTimeout = func() time.Duration { return betweenMost }
	started := make(chan struct{})
	p.server.NotifyStartedFunc = sync.OnceFunc(func() { close(started) })
	go func() { // ends with the socket
		if err := p.server.ActivateAndServe(); err != nil && !errors.Is(err, net.ErrClosed) {
			p.log.Error("a socket died", "protocol", p.protocol, "addr", p.at, "err", err)
		}
		p.server.NotifyStartedFunc()
		close(p.ended)
		gone()
	}()
	<-started
}

// A datagram's source rides in its buffer behind it, since the library does not say whose message it found invalid.
const (
	questionMost = dns.MinMsgSize // what the library reads of a question by default; what is longer is cut, and invalid
	headerSize   = 12
	tagSize      = 16
)

// nobody is whom messages are counted for that the library refuses by their header.
func nobody() netip.Addr { return netip.Addr{} }

// tag notes whom m is counted for, and returns that.
func tag(m []byte, client net.Addr) netip.Addr {
	if len(m) < headerSize || dns.DefaultMsgAcceptFunc(header(m)) != dns.MsgAccept {
		return nobody()
	}
	src := places.Source(client)
	bytes := src.As16()
	copy(m[:cap(m)][cap(m)-tagSize:], bytes[:])
	return src
}

// tagged reads back what tag noted of a message that turned out invalid.
func tagged(m []byte) netip.Addr {
	if len(m) < headerSize {
		return nobody()
	}
	return netip.AddrFrom16([tagSize]byte(m[:cap(m)][cap(m)-tagSize:])).Unmap()
}

func header(m []byte) dns.Header {
	word := func(i int) uint16 { return binary.BigEndian.Uint16(m[2*i:]) }
	return dns.Header{Id: word(0), Bits: word(1), Qdcount: word(2), Ancount: word(3), Nscount: word(4), Arcount: word(5)}
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

// ServeDNS answers one question.
func (p *point) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	client := places.Source(w.RemoteAddr())
	if p.protocol == "udp" {
		defer p.crowd.give(client)
	}
	for {
		if c := p.chain.Load(); c.enter() {
			defer c.leave()
			c.answer(p.observer, p.at, client, w, r)
			return
		}
		// It was retired since: another is in its place already.
	}
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
	p.gate.shut()
	p.until(time.Now()) // wakes who reads
}

func (p *point) resume() {
	p.until(time.Time{})
	p.gate.open()
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
	p.gate.end()
	if p.protocol == "tcp" {
		// Now: the library would close it after the last connection, and let more of them queue up meanwhile.
		_ = p.socket.Close()
	}
	tick := time.NewTicker(idleMost / 10)
	defer tick.Stop()
	for begun := time.Now(); time.Since(begun) < drainMost; {
		p.conns.drain(begun.Add(idleMost))
		if p.protocol == "udp" {
			p.until(time.Now()) // again: who was just about to read has set a deadline of its own
		}
		select {
		case <-p.ended:
			return nil
		case <-tick.C:
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), cutMost)
	defer cancel()
	_ = p.server.ShutdownContext(ctx) // how it went is seen below
	_ = p.socket.Close()
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s %s is still served after %s", p.protocol, p.at, drainMost+cutMost)
	}
}

// reader stands between the library and a socket: it is where a point pauses, and sees where one question ends and the next
// begins on a connection.
//
// A point over UDP has one, a connection another: one goroutine uses it.
type reader struct {
	dns.Reader
	p      *point
	answer []byte // of whoever stands before the chain
}

// ReadUDP reads one question. It may be one that came in before a pause began.
func (r *reader) ReadUDP(conn *net.UDPConn, timeout time.Duration) ([]byte, *dns.SessionUDP, error) {
	for {
		if !r.p.gate.pass() {
			return nil, nil, net.ErrClosed
		}
		if r.p.crowd.full() {
			<-time.After(fullLook)
			continue
		}
		m, session, err := r.Reader.ReadUDP(conn, timeout)
		if err == nil {
			m = m[:min(len(m), questionMost)]
			if r.p.first != nil && r.before(conn, m, session) {
				continue
			}
			if !r.p.crowd.take(tag(m, session.RemoteAddr())) {
				continue
			}
		}
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return m, session, err
		}
	}
}

// before has a datagram answered by whoever stands before the chain, where that can.
func (r *reader) before(conn *net.UDPConn, m []byte, session *dns.SessionUDP) bool {
	answer := r.p.before(r.answer[:0], m, places.Source(session.RemoteAddr()))
	if answer == nil {
		return false
	}
	r.answer = answer
	_, _ = dns.WriteToSessionUDP(conn, answer, session) // an error: the client is gone
	return true
}

// ReadTCP reads one question, or says that the connection ends here.
func (r *reader) ReadTCP(conn net.Conn, timeout time.Duration) ([]byte, error) {
	s, ok := conn.(*stream)
	if !ok {
		return nil, fmt.Errorf("the connection is a %T", conn)
	}
	for {
		if !s.of.await(s) {
			return nil, io.EOF
		}
		m, err := r.Reader.ReadTCP(conn, timeout)
		s.of.asked(s)
		if err != nil || r.p.first == nil {
			return m, err
		}
		answer := r.p.before(append(r.answer[:0], 0, 0), m, s.source)
		if answer == nil {
			return m, nil
		}
		r.answer = answer
		binary.BigEndian.PutUint16(answer, uint16(len(answer)-2))
		_ = conn.SetWriteDeadline(time.Now().Add(writeMost))
		if _, err := conn.Write(answer); err != nil {
			return nil, err
		}
		timeout = betweenMost
	}
}

// acceptor accepts a point's connections.
type acceptor struct {
	*net.TCPListener
	p *point
}

func (a acceptor) Accept() (net.Conn, error) {
	for {
		if !a.p.gate.pass() {
			return nil, net.ErrClosed
		}
		conn, err := a.AcceptTCP()
		if err == nil {
			if s := a.p.conns.add(conn); s != nil {
				return s, nil
			}
			continue
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, err
		}
	}
}
