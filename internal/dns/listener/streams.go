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

// streams are the open connections of one point.
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
	waits    bool // for its next question; guarded by of.mu, as the next three
	answered bool // at least one question, or it is in work
	partly   bool // its next question has begun to come
	inWork   int  // questions that workers have

	writing sync.Mutex     // one whole answer after the other
	pending sync.WaitGroup // counts what inWork does

	source       netip.Addr
	inside       bool          // counted in the quota; guarded by its lock, as are the next two
	inAll, inOwn *list.Element // its places among those that wait
}

// maxUnread bounds the answers of one connection that its client has not read. The kernel takes twice of it, for its own overhead, and
// then grows it no further; left alone it takes 4 MiB, for which the container's memory limit has no room.
const maxUnread = 32 << 10

// add takes a new connection in. Where there is no place for it, it is closed and nil returned.
func (s *streams) add(conn *net.TCPConn) *stream {
	c := &stream{TCPConn: conn, of: s, source: fairshare.Client(conn.RemoteAddr())}
	victim, ok := s.quota.enter(c)
	if victim != nil {
		victim.reset() // whoever reads it sees an error, and ends it
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

// Write writes a whole answer, whoever gives it, within writeMost. A deadline outlasts the write that it was set for, so each has its
// own. Nothing can follow an answer that was cut: then the connection is closed.
func (c *stream) Write(b []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.SetWriteDeadline(time.Now().Add(writeMost)); err != nil {
		return 0, err
	}
	n, err := c.TCPConn.Write(b)
	if err != nil {
		c.reset()
	}
	return n, err
}

// reset closes a connection at once, so that it leaves nothing in the kernel either: a flood would leave thousands that
// wait for their client's end.
func (c *stream) reset() {
	_ = c.SetLinger(0) // an error: it is closed already
	_ = c.TCPConn.Close()
}

// await is called before a question is read. goes is false if the connection is to end instead: its point ends, the last question is
// answered, and no further one has come in. ends says that the point does.
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

// begins is called when a part of the next question was read.
func (s *streams) begins(c *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.partly = true
}

// heard is called when the question was read, or none could be.
func (s *streams) heard(c *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.waits, c.answered = false, true
	s.quota.busy(c)
}

// begin counts a question in that a worker gets.
func (s *streams) begin(c *stream) {
	c.pending.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	c.inWork++
}

// dealt counts it out.
func (s *streams) dealt(c *stream) {
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

// drain lets each connection end after its next answer, or at idleTill if it asks nothing more. It is called again and
// again, since who begins to read just now sets a deadline of its own.
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

// unread tells how many bytes have come in that nobody has read.
func (c *stream) unread() (n int) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) })
	return n
}

// piped is one question over TCP while a worker has it: the chain's writer.
type piped struct {
	responsewriter.Base
	of       *stream
	p        *point
	question []byte
}

// pipe gives a question to a worker, so that those behind it need not wait for its answer (RFC 7766, sections 6.2.1.1 and 7). It returns
// false where the source has its share of such questions in work.
func (p *point) pipe(c *stream, question []byte) bool {
	if len(question) < msg.HeaderSize || !p.quota.takePiped(c.source) {
		return false
	}
	c.of.begin(c)
	p.workers.do(&piped{responsewriter.Base{Local: c.LocalAddr(), Remote: c.RemoteAddr()}, c, p, question})
	return true
}

// serve has the chain answer the question.
func (q *piped) serve() {
	defer q.of.of.dealt(q.of)
	defer q.p.quota.givePiped(q.of.source)
	wire := q.question
	q.question = nil
	q.p.deal(q.of.source, q, wire)
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
