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

	"github.com/neardns/neardns/internal/dns/msg"
)

// line is a UDP socket, or a TCP or TLS connection, to a server. It carries one query at a time. Several queries on one TCP connection
// would save sockets, but common servers, CoreDNS among them, answer them one after the other, so a slow name would delay the others.
type line struct {
	conn     net.Conn
	stream   bool
	until    time.Time // it is not reused after this time
	idle     time.Time // when it was last returned to the pool
	served   bool      // it has carried an answer, so the server may have closed it since
	rejected error     // the first ICMP error for its datagram, see func rejection

	// The part of an answer that was read so far. Over TCP it begins with the two bytes of length.
	buf *[]byte
	n   int
}

// bufferSize is the size of a buffer in bytes. It fits a UDP answer of the usual maximum (1232 bytes, which the agent sets for its
// clients), and most TCP answers. Each waiting query has a buffer, so it is no larger.
const bufferSize = 1280

// buffers is a pool of buffers for queries and answers in wire form.
type buffers struct{ pool sync.Pool }

func (b *buffers) get() *[]byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return p
	}
	p := make([]byte, bufferSize)
	return &p
}

func (b *buffers) put(p *[]byte) {
	if cap(*p) == bufferSize { // a larger buffer is left to the garbage collector
		*p = (*p)[:bufferSize]
		b.pool.Put(p)
	}
}

// pack returns a query in wire form, with the two bytes of length that TCP needs in front. The caller must return the buffer to b.
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

// newID returns an unpredictable message ID (RFC 5452, section 9.2). The random source is ChaCha8, seeded by the system.
func newID() uint16 { return uint16(rand.Uint32()) } //nolint:gosec // see above

// send sends the query in wire, which pack has returned, with a new ID.
func (l *line) send(wire []byte) (id uint16, err error) {
	id = newID()
	msg.SetID(wire[2:], id)
	if !l.stream {
		wire = wire[2:]
	}
	for range maxRejections {
		if _, err = l.conn.Write(wire); l.stream || !rejection(err) {
			break // otherwise the kernel did not send it, but returned the ICMP error for an earlier datagram
		}
	}
	return id, err
}

// await waits for the answer with receive. After the first ICMP error for the query it waits for hedgeAfter more, but not beyond end,
// because most such errors are true.
func (l *line) await(ctx context.Context, b *buffers, req *dns.Msg, id uint16, end time.Time) (*dns.Msg, error) {
	if l.rejected == nil {
		if m, err := l.receive(b, req, id); l.rejected == nil {
			return m, err
		}
	}
	if soon := time.Now().Add(hedgeAfter); soon.Before(end) {
		end = soon
	}
	_ = l.conn.SetDeadline(end) // fails only if the socket is closed, and then receiving fails too
	if ctx.Err() != nil {
		_ = l.conn.SetDeadline(time.Unix(1, 0)) // ctx ended before, and its deadline has just been replaced
	}
	return l.receive(b, req, id)
}

// maxRejections is how often a query is sent at most, if the kernel returns the ICMP error for an earlier datagram instead of sending it.
const maxRejections = 3

// rejection reports whether err may be an ICMP error for a datagram, as Linux returns it from the socket (icmp_err_convert,
// icmpv6_err_convert). Such an error may be forged, because the kernel compares only addresses and ports, so the server may still answer.
func rejection(err error) bool {
	errno, _ := errors.AsType[syscall.Errno](err) // 0 for another error
	switch errno {
	case syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.ENONET, syscall.ENOPROTOOPT,
		syscall.EPROTO, syscall.EOPNOTSUPP, syscall.EACCES, syscall.EMSGSIZE:
		return true
	}
	return false
}

// receive waits for the answer to req until the connection's deadline. After a timeout or the first ICMP error it may be called again,
// and continues. It ignores later ICMP errors, and returns the first one at the deadline.
func (l *line) receive(b *buffers, req *dns.Msg, id uint16) (*dns.Msg, error) {
	if l.buf == nil {
		l.buf = b.get()
	}
	for {
		wire, err := l.message(udpSize(req))
		switch {
		case err == nil:
		case !l.stream && rejection(err) && l.rejected == nil:
			l.rejected = err
			return nil, err
		case !l.stream && rejection(err):
			continue
		case l.rejected != nil && isTimeout(err):
			return nil, l.rejected
		default:
			return nil, err
		}
		m, err := read(wire, req, id)
		if err == nil || l.stream || !errors.Is(err, errForeign) {
			b.put(l.buf)
			l.buf, l.n, l.rejected = nil, 0, nil
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
				return nil, errForeign // only one query is in flight
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

// udpSize returns the maximum size of a UDP answer to req in bytes.
func udpSize(req *dns.Msg) int {
	if o := req.IsEdns0(); o != nil {
		return max(dns.MinMsgSize, int(o.UDPSize()))
	}
	return dns.MinMsgSize
}

// stale reports whether err only means that the server had closed a pooled connection. The query is then sent again over another one.
func (l *line) stale(err error) bool {
	return l.stream && l.served && l.n == 0 && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE))
}

func (l *line) close(b *buffers) {
	_ = l.conn.Close() // no data depends on it
	if l.buf != nil {
		b.put(l.buf)
		l.buf = nil
	}
}

// connect is a function that makes a connection. network is "udp" or "tcp"; mark is the socket's mark, 0: none.
type connect func(ctx context.Context, network, addr string, mark int) (net.Conn, error)

// connectSocket is connect with the kernel's sockets.
func connectSocket(ctx context.Context, network, addr string, mark int) (net.Conn, error) {
	// No keep-alives, because idle connections are closed after seconds.
	d := net.Dialer{KeepAlive: -1, Control: func(network, _ string, c syscall.RawConn) error { return prepare(network, c, mark) }}
	return d.DialContext(ctx, network, addr)
}

// dial opens a line, over TLS if config is not nil. For UDP it never waits.
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
			_ = conn.Close() // the handshake's error is the useful one
			return nil, err
		}
		conn = secure
	}
	return &line{conn: conn, stream: stream}, nil
}

// prepare sets a socket's options before it connects. If mark is not 0, it sets the mark by which the host table recognises the agent's
// packets.
func prepare(network string, c syscall.RawConn, mark int) error {
	var err error
	ctlErr := c.Control(func(fd uintptr) {
		if mark != 0 {
			if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark); err != nil {
				return
			}
		}
		switch network {
		// With IP_RECVERR, a connected UDP socket returns "host unreachable" (ip(7)); without it, the query would wait in vain.
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
