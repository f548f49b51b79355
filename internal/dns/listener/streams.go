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

	quota *quota // has a lock of its own, taken after mu or alone
}

// stream is one connection. One goroutine reads it; several may write.
type stream struct {
	*net.TCPConn
	of       *streams
	waits    bool // for its next query; guarded by of.mu, as the next three
	answered bool // at least one query, or it is in progress
	partly   bool // its next query has begun to arrive
	inWork   int  // queries that workers have

	writing sync.Mutex     // one whole answer after the other
	pending sync.WaitGroup // counts what inWork does

	source       netip.Addr
	inside       bool          // counted in the quota; guarded by its lock, as are the next two
	inAll, inOwn *list.Element // in the quota's lists of waiting connections
}

// maxUnread bounds the answers of one connection that its client has not read. The kernel doubles it for its own overhead, and then does
// not grow the buffer further. By default it grows to 4 MiB, for which the container's memory limit has no room.
const maxUnread = 32 << 10

// add admits a new connection. If there is no slot for it, add closes it and returns nil.
func (s *streams) add(conn *net.TCPConn) *stream {
	c := &stream{TCPConn: conn, of: s, source: fairshare.Client(conn.RemoteAddr())}
	victim, ok := s.quota.enter(c)
	if victim != nil {
		victim.reset() // its reader gets an error, and ends it
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

// Close takes the connection out of its point's list.
func (c *stream) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	c.of.quota.leave(c)
	return c.TCPConn.Close()
}

// Write writes a whole answer within maxWrite. A deadline outlasts the write that it was set for, so each write sets its own. Nothing can
// follow a partial answer, so the connection is then closed.
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

// reset closes a connection at once and leaves no state in the kernel. A flood would otherwise leave thousands of connections that wait for
// their clients.
func (c *stream) reset() {
	_ = c.SetLinger(0) // an error: it is closed already
	_ = c.TCPConn.Close()
}

// await is called before a query is read. goes is false if the connection should end instead: its point ends, the last query is answered,
// and no further one has arrived. ends reports whether the point ends.
func (s *streams) await(c *stream) (goes, ends bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining && c.answered && c.unread() == 0 {
		return false, true
	}
	c.waits, c.partly = true, false
	if c.inWork == 0 {
		s.quota.idle(c)
	}
	return true, s.draining
}

// begins is called when a part of the next query was read.
func (s *streams) begins(c *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.partly = true
}

// heard is called when the query was read, or none could be.
func (s *streams) heard(c *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.waits, c.answered = false, true
	s.quota.busy(c)
}

// begin counts a query that a worker gets.
func (s *streams) begin(c *stream) {
	c.pending.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	c.inWork++
}

// done ends what begin began: c has one query less in work.
func (s *streams) done(c *stream) {
	defer c.pending.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.inWork--; c.inWork > 0 || !c.waits {
		return
	}
	s.quota.idle(c)
	if s.draining && !c.partly && c.unread() == 0 {
		_ = c.SetReadDeadline(time.Now()) // its last answer is out; an error: it is closed
	}
}

// drain lets each connection end after its next answer, or at idleTill if no query comes. It is called repeatedly, because a reader that
// starts just now sets a deadline of its own.
func (s *streams) drain(idleTill time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	for c := range s.open {
		if c.waits {
			_ = c.SetReadDeadline(idleTill) // an error: it is closed
		}
	}
}

// unread is how many bytes wait in the socket.
func (c *stream) unread() (n int) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) })
	return n
}

// piped is one query over TCP while a worker has it: the chain's writer.
type piped struct {
	responsewriter.Base
	of       *stream
	p        *point
	question []byte
}

// pipe gives a query to a worker, so that the queries behind it need not wait for its answer (RFC 7766, sections 6.2.1.1 and 7). It returns
// false if the client has its share of such queries in progress.
func (p *point) pipe(c *stream, question []byte) bool {
	if len(question) < msg.HeaderSize || !p.quota.takePiped(c.source) {
		return false
	}
	c.of.begin(c)
	p.workers.do(&piped{responsewriter.Base{Local: c.LocalAddr(), Remote: c.RemoteAddr()}, c, p, question})
	return true
}

// serve runs the query through the chain.
func (q *piped) serve() {
	defer q.of.of.done(q.of)
	defer q.p.quota.givePiped(q.of.source)
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
