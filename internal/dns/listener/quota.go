package listener

import (
	"container/list"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/neardns/neardns/internal/dns/fairshare"
)

// running is how many UDP queries may be in progress in addition to those that wait for upstreams, and how many TCP queries workers may
// answer at a time; each has a goroutine of some kilobytes. A few keep two processors busy; more would only wait here instead of in the
// socket. The DNS library has no limit: a CoreDNS with 2.8 million goroutines and 60 GiB was reported (coredns/coredns#8312).
const running = 256

// fullPoll is how often a reader checks whether a slot has become free, and how long it waits after a failed read.
const fullPoll = time.Millisecond

// quota limits the UDP queries in progress, the TCP connections, and the TCP queries that workers answer, of one server, and divides them
// among clients. All listening sockets share it. It is safe for concurrent use.
//
// Package fairshare does the division. It remembers only clients that have a slot.
type quota struct {
	idled, refused atomic.Uint64 // connections closed to make room for others, and connections refused
	dropped        atomic.Uint64 // datagrams: queries, and answers (see room)

	mu      sync.Mutex // guards the fields below
	packets fairshare.Pool
	conns   fairshare.Pool
	piped   fairshare.Pool            // TCP queries that workers answer
	visits  map[netip.Addr]*list.List // by client: its connections (*stream) in waiting, in the same order
	waiting list.List                 // connections (*stream) that wait for a query, in the order in which they began to wait
}

func newQuota(cfg Config) *quota {
	c := &quota{packets: fairshare.New(0), conns: fairshare.New(0), piped: fairshare.New(running), visits: map[netip.Addr]*list.List{}}
	c.bound(cfg)
	return c
}

// bound applies a configuration's limits. Connections above them stay open.
func (c *quota) bound(cfg Config) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.packets.Resize(running + cfg.Misses)
	c.conns.Resize(cfg.Connections)
}

// full reports whether all slots for UDP queries are taken, so that no further query should be read.
func (c *quota) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.packets.Free() <= 0
}

// take takes a slot of a pool for a query of client src. If it returns false, the client has its share: a UDP query must be dropped so that
// other clients' queries are answered, and a TCP connection's next query must wait for this one's answer.
func (c *quota) take(slots *fairshare.Pool, src netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slots.MayAcquire(src) {
		return false
	}
	slots.Acquire(src)
	return true
}

// give frees a slot that take took.
func (c *quota) give(slots *fairshare.Pool, src netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	slots.Release(src)
}

// enter admits a connection, or refuses it. It may return another connection, victim, which the caller must close.
//
// If a client has its share, the new connection replaces the client's longest idle one. If the client has no idle one and all slots are
// taken, the new connection replaces the longest idle one of all, if that one's client has more connections than the new one's. Otherwise
// the new connection is refused. A connection with a query in progress is not replaced.
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
	c.await(s) // idle until its first query is read, so another new connection may replace it
	return victim, true
}

func at(e *list.Element) *stream {
	s, _ := e.Value.(*stream) // the lists hold nothing else
	return s
}

// leave removes a connection that is closed. It may be called twice.
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

// idle records that a connection waits for a query, so that a new connection may replace it.
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

// busy records that a connection has a query in progress.
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

// count has the number of slots, and how many are taken.
type count struct{ most, taken int }

// counts returns the slots for UDP queries and for TCP connections.
func (c *quota) counts() (packets, conns count) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return count{c.packets.Size(), c.packets.Used()}, count{c.conns.Size(), c.conns.Used()}
}
