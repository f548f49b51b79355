package forward

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// line is one connected socket to a server, with one question on it at a time. Several on one stream would save sockets,
// but the usual servers (CoreDNS among them) answer a stream's questions one after the other, so that a slow name would
// hold up those behind it.
type line struct {
	conn   net.Conn
	stream bool
	until  time.Time // it is not used again after that
	idle   time.Time // since when it waits in the pool
	served bool      // it has carried an answer: the server may have closed it meanwhile
	told   error     // what the network said of a datagram, see rejection

	// What was read of an answer that is not whole yet, behind its two bytes of length on a stream.
	buf *[]byte
	n   int
}

// bufferSize holds an answer over datagrams of the usual limit (1232 bytes, which the agent sets for its clients), and most
// over streams. Each question that waits for its answer holds one, so it is no larger.
const bufferSize = 1280

// buffers lends read and write buffers.
type buffers struct{ pool sync.Pool }

func (b *buffers) get() *[]byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return p
	}
	p := make([]byte, bufferSize)
	return &p
}

func (b *buffers) put(p *[]byte) {
	if cap(*p) == bufferSize { // one that grew goes back to the garbage
		*p = (*p)[:bufferSize]
		b.pool.Put(p)
	}
}

// pack writes a question with its two bytes of length in front. The buffer goes back to b.
func (b *buffers) pack(req *dns.Msg) (*[]byte, []byte, error) {
	p := b.get()
	wire, err := req.PackBuffer((*p)[2:])
	if err != nil {
		b.put(p)
		return nil, nil, err
	}
	if &wire[0] == &(*p)[2] {
		wire = (*p)[:2+len(wire)]
	} else {
		wire = append([]byte{0, 0}, wire...)
	}
	binary.BigEndian.PutUint16(wire, uint16(len(wire)-2))
	return p, wire, nil
}

// newID is not to be guessed (RFC 5452, section 4.3): the global source is seeded by the system and is ChaCha8.
func newID() uint16 { return uint16(rand.Uint32()) } //nolint:gosec // see above

// send writes the question in wire (see pack) under a new ID.
func (l *line) send(wire []byte) (id uint16, err error) {
	id = newID()
	binary.BigEndian.PutUint16(wire[2:], id)
	if !l.stream {
		wire = wire[2:]
	}
	for range rejectionsMost {
		if _, err = l.conn.Write(wire); l.stream || !rejection(err) {
			break // else the kernel told of a datagram before this one, and did not send
		}
	}
	return id, err
}

// await is receive that waits on after a rejection, of which it tells told (nil: nobody), until end.
func (l *line) await(ctx context.Context, b *buffers, req *dns.Msg, id uint16, end time.Time, told func(error)) (*dns.Msg, error) {
	known := l.told != nil
	m, err := l.receive(b, req, id)
	if known || l.told == nil {
		return m, err
	}
	if told != nil {
		told(err)
	}
	l.listenOn(end)
	if ctx.Err() != nil {
		_ = l.conn.SetDeadline(time.Unix(1, 0)) // it ended before: what its end did to the deadline is undone
	}
	return l.receive(b, req, id)
}

// listenOn has the answer to a rejected datagram waited for as long as any before another server is asked, and no longer: most rejections
// are true.
func (l *line) listenOn(end time.Time) {
	if soon := time.Now().Add(hedgeAfter); soon.Before(end) {
		end = soon
	}
	_ = l.conn.SetDeadline(end) // see over
}

// rejectionsMost is how often a question is sent anew for what the network said of an earlier one.
const rejectionsMost = 3

// rejection reports whether err is what the network said of a datagram (ICMP, as Linux translates it: icmp_err_convert, icmpv6_err_convert).
// It may be anybody's word: the kernel compares ports and addresses and nothing else, and the server may answer all the same.
func rejection(err error) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return false
	}
	switch errno {
	case syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.ENONET, syscall.ENOPROTOOPT, syscall.EPROTO,
		syscall.EOPNOTSUPP, syscall.EACCES, syscall.EMSGSIZE:
		return true
	}
	return false
}

// receive waits for the answer to req until the connection's deadline. After a timeout it may be called again: what was
// read is kept. So it may be after the first rejection of a datagram; later ones are passed over, and at the deadline the first one is the
// error.
func (l *line) receive(b *buffers, req *dns.Msg, id uint16) (*dns.Msg, error) {
	if l.buf == nil {
		l.buf, l.n = b.get(), 0
	}
	for {
		wire, err := l.message(udpSize(req))
		switch {
		case err == nil:
		case !l.stream && rejection(err) && l.told == nil:
			l.told = err
			return nil, err
		case !l.stream && rejection(err):
			continue
		case l.told != nil && isTimeout(err):
			return nil, l.told
		default:
			return nil, err
		}
		m, err := read(wire, req, id)
		if err == nil || l.stream || !errors.Is(err, errForeign) {
			b.put(l.buf)
			l.buf, l.told = nil, nil
			l.served = l.served || err == nil
			return m, err
		}
	}
}

// message reads one message.
func (l *line) message(size int) ([]byte, error) {
	if !l.stream {
		if len(*l.buf) < size {
			*l.buf = make([]byte, size)
		}
		n, err := l.conn.Read(*l.buf)
		return (*l.buf)[:n], err
	}
	for {
		if l.n >= 2 {
			whole := 2 + int(binary.BigEndian.Uint16(*l.buf))
			if l.n > whole {
				return nil, errForeign // nothing more was asked for
			}
			if l.n == whole {
				return (*l.buf)[2:whole], nil
			}
			if len(*l.buf) < whole {
				grown := make([]byte, whole)
				copy(grown, (*l.buf)[:l.n])
				*l.buf = grown
			}
		}
		n, err := l.conn.Read((*l.buf)[l.n:])
		l.n += n
		if n == 0 && err != nil {
			return nil, err
		}
	}
}

// udpSize is how long an answer over datagrams may be.
func udpSize(req *dns.Msg) int {
	if o := req.IsEdns0(); o != nil {
		return max(dns.MinMsgSize, int(o.UDPSize()))
	}
	return dns.MinMsgSize
}

// stale reports whether err only means that the server had closed a connection that we kept: then nobody has seen the
// question, or nobody will say what became of it, and it is asked again over another.
func (l *line) stale(err error) bool {
	return l.stream && l.served && l.n == 0 && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE))
}

func (l *line) close(b *buffers) {
	_ = l.conn.Close() // nothing is lost with it
	if l.buf != nil {
		b.put(l.buf)
		l.buf = nil
	}
}

// connect makes a connection over a network, "udp" or "tcp".
type connect func(ctx context.Context, network, addr string, mark int) (net.Conn, error)

// connectSocket is connect by the kernel.
func connectSocket(ctx context.Context, network, addr string, mark int) (net.Conn, error) {
	// Idle lines are closed after seconds, so the kernel's own keep-alives would find nothing.
	d := net.Dialer{KeepAlive: -1, Control: func(network, _ string, c syscall.RawConn) error { return prepare(network, c, mark) }}
	return d.DialContext(ctx, network, addr)
}

// dial opens a line. Over datagrams it never waits.
func dial(ctx context.Context, by connect, addr string, stream bool, config *tls.Config, mark int) (*line, error) {
	network := "udp"
	if stream {
		network = "tcp"
	}
	conn, err := by(ctx, network, addr, mark)
	if err != nil {
		return nil, err
	}
	if config != nil {
		secure := tls.Client(conn, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = conn.Close() // the handshake's error says more
			return nil, err
		}
		conn = secure
	}
	return &line{conn: conn, stream: stream}, nil
}

// prepare sets what a socket needs before it connects. A mark, where given, tells the host table that the agent asks.
func prepare(network string, c syscall.RawConn, mark int) error {
	var err error
	ctlErr := c.Control(func(fd uintptr) {
		if mark != 0 {
			if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark); err != nil {
				return
			}
		}
		switch network {
		// Else "host unreachable" stays unknown to a connected datagram socket (ip(7)), and the question waits.
		case "udp4":
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVERR, 1)
		case "udp6":
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
		}
	})
	return errors.Join(ctlErr, err)
}

func isTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}
