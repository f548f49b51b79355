package dns

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// running is how many datagrams may be in work beside the misses that wait for upstreams: each is a goroutine of some
// kilobytes. Two processors need no more than a few to be busy; the others would only wait here and not in the socket. The
// DNS library itself knows no bound: CoreDNS was seen with 2.8 million goroutines and 60 GiB (coredns/coredns#8312).
const running = 256

// fullLook is how often a reader that waits looks again.
const fullLook = time.Millisecond

// crowd bounds what clients may hold of one server at one time: datagrams in work, and TCP connections. All points share it.
// It is safe for concurrent use.
//
// Both are shared by source as misses are (see the admit plugin): who has as many as places are free gets no more. So one
// alone has half, and there is room for who comes. It bounds the sources that are remembered, too.
type crowd struct {
	idled, refused atomic.Uint64 // connections that were closed for others, and not let in
	dropped        atomic.Uint64 // datagrams

	mu      sync.Mutex // guards the fields below
	packets share
	conns   share
	visits  map[netip.Addr]*list.List // of *stream: a source's part of waiting
	waiting list.List                 // of *stream, those that await a question, longest first
}

// share is a number of places and who has them.
type share struct {
	most, taken int
	by          map[netip.Addr]int // never more sources than places
}

func (s *share) free() int { return s.most - s.taken }

// mayTake tells whether src may have one more.
func (s *share) mayTake(src netip.Addr) bool { return s.by[src] < s.free() }

func (s *share) take(src netip.Addr) {
	s.taken++
	s.by[src]++
}

func (s *share) give(src netip.Addr) {
	s.taken--
	if s.by[src]--; s.by[src] <= 0 {
		delete(s.by, src)
	}
}

func newCrowd(cfg Config) *crowd {
	c := &crowd{packets: share{by: map[netip.Addr]int{}}, conns: share{by: map[netip.Addr]int{}}, visits: map[netip.Addr]*list.List{}}
	c.bound(cfg)
	return c
}

// bound takes over a configuration's limits. What is open beyond them stays.
func (c *crowd) bound(cfg Config) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.packets.most, c.conns.most = running+cfg.Misses, cfg.Connections
}

// full tells whether no further datagram should be read for now: whoever sent it could not be served.
func (c *crowd) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.packets.free() <= 0
}

// take lets a datagram of src in. Where it does not, the datagram is dropped: answering would take the time that others wait
// for.
func (c *crowd) take(src netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.packets.mayTake(src) {
		c.dropped.Add(1)
		return false
	}
	c.packets.take(src)
	return true
}

// give says that a datagram of src has been dealt with.
func (c *crowd) give(src netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.packets.give(src)
}

// enter lets a connection in, or not. It may be one for another: then that is returned, and is to be closed.
//
// A source that may have no more gives the one that it has not asked on for longest for its new one. Where all places are
// taken, the longest idle one of all goes, if its source has more than who comes. A connection with a question in work is
// never closed.
func (c *crowd) enter(s *stream) (victim *stream, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.conns.mayTake(s.source) {
		own, first := c.visits[s.source], c.waiting.Front()
		switch {
		case own != nil && own.Len() > 0:
			victim = at(own.Front())
		case c.conns.free() <= 0 && first != nil && c.conns.by[at(first).source] > c.conns.by[s.source]:
			victim = at(first)
		default:
			c.refused.Add(1)
			return nil, false
		}
		c.idled.Add(1)
		c.drop(victim)
	}
	c.conns.take(s.source)
	s.inside = true
	c.await(s) // nobody may have begun to read it when the next one comes
	return victim, true
}

func at(e *list.Element) *stream {
	s, _ := e.Value.(*stream) // the lists hold nothing else
	return s
}

// leave forgets a connection that is closed. It may be called twice.
func (c *crowd) leave(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(s)
}

func (c *crowd) drop(s *stream) {
	if s.inside {
		c.busied(s)
		s.inside = false
		c.conns.give(s.source)
	}
}

// idle notes that a connection awaits a question.
func (c *crowd) idle(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.await(s)
}

func (c *crowd) await(s *stream) {
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
func (c *crowd) busy(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busied(s)
}

func (c *crowd) busied(s *stream) {
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

// counts are for the metrics.
func (c *crowd) counts() (packets, conns share) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return share{most: c.packets.most, taken: c.packets.taken}, share{most: c.conns.most, taken: c.conns.taken}
}

// sourceOf is whom something is counted for: the address, also in IPv6, where a node's pods share their /64.
func sourceOf(client net.Addr) netip.Addr {
	switch a := client.(type) {
	case *net.UDPAddr:
		return a.AddrPort().Addr().Unmap().WithZone("")
	case *net.TCPAddr:
		return a.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}
