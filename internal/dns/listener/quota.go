package listener

import (
	"container/list"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/neardns/neardns/internal/dns/fairshare"
)

// running is how many datagrams may be in work beside the misses that wait for upstreams: each is a goroutine of some
// kilobytes. Two processors need no more than a few to be busy; the others would only wait here and not in the socket. The
// DNS library itself knows no bound: CoreDNS was seen with 2.8 million goroutines and 60 GiB (coredns/coredns#8312).
const running = 256

// fullLook is how often a reader that waits looks again.
const fullLook = time.Millisecond

// quota bounds what clients may hold of one server at one time: datagrams in work, and TCP connections. All points share it.
// It is safe for concurrent use.
//
// Both are shared by source as misses are (package places), which bounds the sources that are remembered, too.
type quota struct {
	idled, refused atomic.Uint64 // connections that were closed for others, and not let in
	dropped        atomic.Uint64 // datagrams: questions, and answers (see room)
	overflows      overflows     // datagrams that the kernel dropped; has a lock of its own

	mu      sync.Mutex // guards the fields below
	packets fairshare.Pool
	conns   fairshare.Pool
	piped   fairshare.Pool            // questions over TCP that were read while earlier ones of their connection may be in work
	visits  map[netip.Addr]*list.List // of *stream: a source's part of waiting
	waiting list.List                 // of *stream, those that await a question, longest first
}

func newQuota(cfg Config) *quota {
	c := &quota{packets: fairshare.New(0), conns: fairshare.New(0), piped: fairshare.New(running), visits: map[netip.Addr]*list.List{}}
	c.bound(cfg)
	return c
}

// bound takes over a configuration's limits. What is open beyond them stays.
func (c *quota) bound(cfg Config) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.packets.Resize(running + cfg.Misses)
	c.conns.Resize(cfg.Connections)
}

// full tells whether no further datagram should be read for now: whoever sent it could not be served.
func (c *quota) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.packets.Free() <= 0
}

// take lets a datagram of src in. Where it does not, the datagram is dropped: answering would take the time that others wait
// for.
func (c *quota) take(src netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.packets.MayAcquire(src) {
		c.dropped.Add(1)
		return false
	}
	c.packets.Acquire(src)
	return true
}

// give says that a datagram of src has been dealt with.
func (c *quota) give(src netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.packets.Release(src)
}

// takePiped lets a question over TCP into work beside those of its connection. Where it does not, the connection's next question waits.
func (c *quota) takePiped(src netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.piped.MayAcquire(src) {
		return false
	}
	c.piped.Acquire(src)
	return true
}

// givePiped says that such a question has been dealt with.
func (c *quota) givePiped(src netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.piped.Release(src)
}

// enter lets a connection in, or not. It may be one for another: then that is returned, and is to be closed.
//
// A source that may have no more gives the one that it has not asked on for longest for its new one. Where all places are
// taken, the longest idle one of all goes, if its source has more than who comes. A connection with a question in work is
// never closed.
func (c *quota) enter(s *stream) (victim *stream, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.conns.MayAcquire(s.source) {
		own, first := c.visits[s.source], c.waiting.Front()
		switch {
		case own != nil && own.Len() > 0:
			victim = at(own.Front())
		case c.conns.Free() <= 0 && first != nil && c.conns.UsedBy(at(first).source) > c.conns.UsedBy(s.source):
			victim = at(first)
		default:
			c.refused.Add(1)
			return nil, false
		}
		c.idled.Add(1)
		c.drop(victim)
	}
	c.conns.Acquire(s.source)
	s.inside = true
	c.await(s) // nobody may have begun to read it when the next one comes
	return victim, true
}

func at(e *list.Element) *stream {
	s, _ := e.Value.(*stream) // the lists hold nothing else
	return s
}

// leave forgets a connection that is closed. It may be called twice.
func (c *quota) leave(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(s)
}

func (c *quota) drop(s *stream) {
	if s.inside {
		c.busied(s)
		s.inside = false
		c.conns.Release(s.source)
	}
}

// idle notes that a connection awaits a question.
func (c *quota) idle(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.await(s)
}

func (c *quota) await(s *stream) {
	if !s.inside || s.inAll != nil {
		return
	}
	own := c.visits[s.source]
	if own == nil {
		own = new(list.List)
		c.visits[s.source] = own
	}
	s.inAll, s.inOwn = c.waiting.PushBack(s), own.PushBack(s)
}

// busy notes that a connection has a question in work.
func (c *quota) busy(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busied(s)
}

func (c *quota) busied(s *stream) {
	if s.inAll == nil {
		return
	}
	c.waiting.Remove(s.inAll)
	own := c.visits[s.source]
	if own.Remove(s.inOwn); own.Len() == 0 {
		delete(c.visits, s.source)
	}
	s.inAll, s.inOwn = nil, nil
}

// count is how many places there are, and how many are taken.
type count struct{ most, taken int }

// counts are for the metrics.
func (c *quota) counts() (packets, conns count) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return count{c.packets.Size(), c.packets.Used()}, count{c.conns.Size(), c.conns.Used()}
}
