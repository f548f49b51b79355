package listener

import (
	"container/list"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/internal/dns/fairshare"
	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/dns/responsewriter"
)

// streams are the open TCP connections of one listening socket (point).
type streams struct {
	mu       sync.Mutex // guards the fields below
	open     map[*stream]bool
	draining bool
	cut      bool // no further query is read

	quota  *quota // has its own lock, which may be taken while mu is held
	limits limits // never changes
}

// stream is one TCP connection. One goroutine reads it; several may write.
type stream struct {
	*net.TCPConn
	of       *streams
	waits    bool // waits for its next query; guarded by of.mu, as are the next three
	answered bool // it has had at least one query
	partly   bool // its next query has begun to arrive
	inWork   int  // number of its queries that workers have not answered yet

	writing sync.Mutex     // held while one answer is written, so that answers do not mix
	pending sync.WaitGroup // counts the same queries as inWork, to wait for them

	source       netip.Addr
	inside       bool          // counted in the quota; guarded by the quota's lock, as are the next two
	inAll, inOwn *list.Element // in the quota's lists of waiting connections
}

// maxUnread limits the answers of a connection that its client has not read, in bytes. The kernel doubles it for its own overhead, and
// then does not let the buffer grow. By default it grows to 4 MiB, for which the container's memory limit has no room.
const maxUnread = 32 << 10

// add admits a new connection. If the quota refuses it, add closes it and returns nil.
func (s *streams) add(conn *net.TCPConn) *stream {
	c := &stream{TCPConn: conn, of: s, source: fairshare.Client(conn.RemoteAddr())}
	victim, ok := s.quota.enter(c)
	if victim != nil {
		victim.reset() // its reader gets an error, and closes it
	}
	if !ok {
		c.reset()
		return nil
	}
	_ = conn.SetWriteBuffer(maxUnread) // an error: it is closed
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[*stream]bool{}
	}
	s.open[c] = true
	return c
}

// Close closes the connection and frees its slot in the quota.
func (c *stream) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	c.of.quota.leave(c)
	return c.TCPConn.Close()
}

// Write writes a whole answer, within maxWrite. A deadline would also apply to later writes, so each write sets a new one. After a
// partial answer nothing can follow, so the connection is closed.
func (c *stream) Write(b []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.SetWriteDeadline(time.Now().Add(maxWrite)); err != nil {
		return 0, err
	}
	n, err := c.TCPConn.Write(b)
	if err != nil {
		c.reset()
	}
	return n, err
}

// reset closes a connection at once with a TCP reset, so that no state of it is left in the kernel. A flood would otherwise leave
// thousands of connections that wait for their clients.
func (c *stream) reset() {
	_ = c.SetLinger(0) // an error: it is closed already
	_ = c.TCPConn.Close()
}

// await is called before a query is read. goes is false if the connection should end instead, because the point ends; workers may still
// answer earlier queries, so the caller waits for them. ends is true if the point ends.
func (s *streams) await(c *stream) (goes, ends bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut || s.draining && c.answered && c.unread() == 0 {
		return false, true
	}
	c.waits, c.partly = true, false
	if c.inWork == 0 {
		s.quota.idle(c)
	}
	return true, s.draining
}

// begins records that the first bytes of the next query have been read.
func (s *streams) begins(c *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.partly = true
}

// heard records that the next query was read, or that reading failed.
func (s *streams) heard(c *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.waits, c.answered = false, true
	s.quota.busy(c)
}

// begin counts a query that is given to a worker.
func (s *streams) begin(c *stream) {
	c.pending.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	c.inWork++
}

// done is called when a worker has answered a query of c.
func (s *streams) done(c *stream) {
	defer c.pending.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.inWork--; c.inWork > 0 || !c.waits {
		return
	}
	s.quota.idle(c)
	if s.draining && !c.partly && c.unread() == 0 {
		_ = c.SetReadDeadline(time.Now()) // the last answer is written, so end the reader; an error: it is closed already
	}
}

// drain makes each connection end after its next answer, or at idleTill if no query comes; with cut, even if queries have arrived on it. It
// is called repeatedly, because a reader that starts a read sets its own deadline.
func (s *streams) drain(idleTill time.Time, cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining, s.cut = true, cut
	for c := range s.open {
		if c.waits {
			_ = c.SetReadDeadline(idleTill) // an error: it is closed
		}
	}
}

// unread returns how many bytes wait in the socket to be read.
func (c *stream) unread() (n int) {
	control(c, func(fd int) { n, _ = unix.IoctlGetInt(fd, unix.SIOCINQ) })
	return n
}

// piped is a TCP query while a worker answers it. It is the plugin chain's ResponseWriter.
type piped struct {
	responsewriter.Base
	of       *stream
	p        *point
	question []byte
}

// pipe gives a query to a worker, so that the queries after it on the connection need not wait for its answer (RFC 7766, sections 6.2.1.1
// and 7). If the client has its share of such queries in progress, pipe answers the query itself. A query that is too short for a header
// gets no answer.
func (p *point) pipe(c *stream, question []byte) {
	q := &piped{responsewriter.Base{Local: c.LocalAddr(), Remote: c.RemoteAddr()}, c, p, question}
	switch {
	case len(question) < msg.HeaderSize:
	case p.quota.take(&p.quota.piped, c.source):
		c.of.begin(c)
		p.workers.do(q)
	default:
		p.handle(c.source, q, question)
	}
}

// serve runs the query through the plugin chain.
func (q *piped) serve() {
	defer q.of.of.done(q.of)
	defer q.p.quota.give(&q.p.quota.piped, q.of.source)
	wire := q.question
	q.question = nil
	q.p.handle(q.of.source, q, wire)
}

// WriteMsg sends an answer.
func (q *piped) WriteMsg(m *dns.Msg) error { return responsewriter.Pack(q, m) }

// Write sends an answer's bytes.
func (q *piped) Write(b []byte) (int, error) {
	if len(b) > dns.MaxMsgSize {
		return 0, fmt.Errorf("an answer of %d bytes", len(b))
	}
	framed := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(b)), uint16(len(b)))
	if _, err := q.of.Write(append(framed, b...)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Close closes the connection.
func (q *piped) Close() error { return q.of.TCPConn.Close() }
