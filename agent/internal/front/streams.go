package front

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/agent/internal/places"
)

// streams are the open connections of one point.
type streams struct {
	mu       sync.Mutex // guards the fields below
	open     map[*stream]bool
	draining bool

	quota *quota // has a lock of its own, taken after mu or alone
}

// stream is one connection. Whoever serves it has it alone, but for the deadline.
type stream struct {
	*net.TCPConn
	of       *streams
	waits    bool // for its next question; guarded by of.mu
	answered bool // at least one question; guarded by of.mu

	source       netip.Addr
	inside       bool          // counted in the quota; guarded by its lock, as are the next two
	inAll, inOwn *list.Element // its places among those that wait
}

// add takes a new connection in. Where there is no place for it, it is closed and nil returned.
func (s *streams) add(conn *net.TCPConn) *stream {
	c := &stream{TCPConn: conn, of: s, source: places.Source(conn.RemoteAddr())}
	victim, ok := s.quota.enter(c)
	if victim != nil {
		victim.reset() // whoever reads it sees an error, and ends it
	}
	if !ok {
		c.reset()
		return nil
	}
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

// Write writes an answer, whoever gives it, within writeMost. A deadline outlasts the write that it was set for, so each has its own.
func (c *stream) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(writeMost)); err != nil {
		return 0, err
	}
	return c.TCPConn.Write(b)
}

// reset closes a connection at once, so that it leaves nothing in the kernel either: a flood would leave thousands that
// wait for their client's end.
func (c *stream) reset() {
	_ = c.SetLinger(0) // an error: it is closed already
	_ = c.TCPConn.Close()
}

// await is called before a question is read. It returns false if the connection is to end instead: its point ends, the last
// question is answered, and no further one has come in.
func (s *streams) await(c *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining && c.answered && c.unread() == 0 {
		return false
	}
	c.waits = true
	s.quota.idle(c)
	return true
}

// asked is called when the question was read, or none could be.
func (s *streams) asked(c *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.waits, c.answered = false, true
	s.quota.busy(c)
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
