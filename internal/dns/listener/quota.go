package listener

import (
	"container/list"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/neardns/neardns/internal/dns/fairshare"
)

// running is how many datagrams may be in progress in addition to the misses that wait for upstreams: each is a goroutine of some
// kilobytes. A few keep two processors busy; more would only wait here instead of in the socket. The DNS library has no bound: a CoreDNS
// was seen with 2.8 million goroutines and 60 GiB (coredns/coredns#8312).
const running = 256

// fullPoll is how often a waiting reader checks for a free slot.
const fullPoll = time.Millisecond

// quota bounds what clients may use of one server at one time: datagrams in progress, and TCP connections. All points share it. It is
// safe for concurrent use.
//
// Package fairshare divides both among clients, which also bounds the number of clients that are remembered.
type quota struct {
	idled, refused atomic.Uint64 // connections that were closed for others, and that were refused
	dropped        atomic.Uint64 // datagrams: queries, and answers (see room)
	overflows      overflows     // datagrams that the kernel dropped; has a lock of its own

	mu      sync.Mutex // guards the fields below
	packets fairshare.Pool
	conns   fairshare.Pool
	piped   fairshare.Pool            // queries over TCP that were read while earlier ones of their connection may be in progress
	visits  map[netip.Addr]*list.List // of *stream: a client's part of waiting
	waiting list.List                 // of *stream, those that await a query, longest first
}

func newQuota(cfg Config) *quota {
	c := &quota{packets: fairshare.New(0), conns: fairshare.New(0), piped: fairshare.New(running), visits: map[netip.Addr]*list.List{}}
	c.bound(cfg)
	return c
}

// bound applies a configuration's limits. Connections that are open beyond them stay.
func (c *quota) bound(cfg Config) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.packets.Resize(running + cfg.Misses)
	c.conns.Resize(cfg.Connections)
}

// full reports whether no further datagram should be read for now, because no client could get a slot.
func (c *quota) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.packets.Free() <= 0
}

// take takes a slot for a datagram of src. If it returns false, the datagram is dropped: answering would take time that others wait for.
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

// give frees the slot of a datagram of src.
func (c *quota) give(src netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.packets.Release(src)
}

// takePiped takes a slot for a query over TCP that runs in parallel to others of its connection. If it returns false, the connection's next
// query waits.
func (c *quota) takePiped(src netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.piped.MayAcquire(src) {
		return false
	}
	c.piped.Acquire(src)
	return true
}

// givePiped frees that slot.
func (c *quota) givePiped(src netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.piped.Release(src)
}

// enter admits a connection or refuses it. It may return another one as its victim, which the caller must close.
//
// A client that may have no more loses its longest idle connection for its new one. If all slots are taken, the longest idle connection
// of all goes, if its client has more connections than the newcomer. A connection with a query in progress is never closed.
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
	c.await(s) // the next connection may arrive before this one is read
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

// idle notes that a connection awaits a query.
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

// busy notes that a connection has a query in progress.
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

// count is how many slots there are, and how many are taken.
type count struct{ most, taken int }

// counts are for the metrics.
func (c *quota) counts() (packets, conns count) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return count{c.packets.Size(), c.packets.Used()}, count{c.conns.Size(), c.conns.Used()}
}
