package dns

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// packetsMost is how many datagrams may be read and not yet answered, beside the misses in flight: each is a goroutine of
// about 4 kB, more once it runs. Below that many the server reads as fast as datagrams come; above, it lets them wait in
// the socket, whose buffer the kernel bounds, so that a node without CPU time loses datagrams and not its memory. The
// DNS library itself knows no bound: CoreDNS was seen with 2.8 million goroutines and 60 GiB (coredns/coredns#8312).
const packetsMost = 4096

// fullLook is how often a reader that waits looks again.
const fullLook = time.Millisecond

// crowd bounds what clients may hold of one server at one time: datagrams in work, and TCP connections. All points share it.
// It is safe for concurrent use.
type crowd struct {
	packets    atomic.Int64
	packetsMax atomic.Int64

	idled, refused atomic.Uint64 // connections that were closed for others, and not let in

	mu      sync.Mutex // guards the fields below
	max     int        // connections
	open    int
	visits  map[netip.Addr]*visitor // who has connections: never more of them than max
	waiting list.List               // of *stream, those that await a question, longest first
}

// visitor is one source of connections.
type visitor struct {
	open    int
	waiting list.List // its part of crowd.waiting
}

func newCrowd(cfg Config) *crowd {
	c := &crowd{visits: map[netip.Addr]*visitor{}}
	c.bound(cfg)
	return c
}

// bound takes over a configuration's limits. What is open beyond them stays.
func (c *crowd) bound(cfg Config) {
	c.packetsMax.Store(int64(packetsMost + cfg.Misses))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.max = cfg.Connections
}

// full tells whether no further datagram should be read for now.
func (c *crowd) full() bool { return c.packets.Load() >= c.packetsMax.Load() }

// enter lets a connection in, or not. It may be one for another: then that is returned, and is to be closed.
//
// A source may have as many connections as places are free, as with misses (see the admit plugin); beyond that, one that it
// has not asked on for longest makes room for its new one. Where all places are taken, the longest idle one of all goes, if
// its source has more than who comes. A connection with a question in work is never closed.
func (c *crowd) enter(s *stream) (victim *stream, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.visits[s.source]
	if v == nil {
		v = &visitor{}
	}
	if free := c.max - c.open; v.open >= free {
		switch first := c.waiting.Front(); {
		case v.waiting.Len() > 0:
			victim = v.waiting.Front().Value.(*stream) //nolint:errcheck // the list holds nothing else
		case free <= 0 && first != nil && c.visits[first.Value.(*stream).source].open > v.open: //nolint:errcheck // as above
			victim = first.Value.(*stream) //nolint:errcheck // as above
		default:
			c.refused.Add(1)
			return nil, false
		}
		c.idled.Add(1)
		c.drop(victim)
	}
	c.visits[s.source] = v
	v.open++
	c.open++
	s.inside = true
	c.await(s) // nobody may have begun to read it when the next one comes
	return victim, true
}

// leave forgets a connection that is closed. It may be called twice.
func (c *crowd) leave(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(s)
}

func (c *crowd) drop(s *stream) {
	if !s.inside {
		return
	}
	c.busied(s)
	s.inside = false
	v := c.visits[s.source]
	c.open--
	if v.open--; v.open == 0 {
		delete(c.visits, s.source)
	}
}

// idle notes that a connection awaits a question.
func (c *crowd) idle(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.await(s)
}

func (c *crowd) await(s *stream) {
	if s.inside && s.inAll == nil {
		s.inAll, s.inOwn = c.waiting.PushBack(s), c.visits[s.source].waiting.PushBack(s)
	}
}

// busy notes that a connection has a question in work.
func (c *crowd) busy(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busied(s)
}

func (c *crowd) busied(s *stream) {
	if s.inAll != nil {
		c.waiting.Remove(s.inAll)
		c.visits[s.source].waiting.Remove(s.inOwn)
		s.inAll, s.inOwn = nil, nil
	}
}

func (c *crowd) connections() (open, most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open, c.max
}

// sourceOf is whom a connection is counted for.
func sourceOf(conn *net.TCPConn) netip.Addr {
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}
