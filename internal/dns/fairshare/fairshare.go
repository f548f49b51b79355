// Package fairshare divides a pool of slots among clients, so that a flood of one client does not take what others need.
//
// A client may take another slot while it has fewer than are free (dynamic thresholds, Choudhury and Hahne, IEEE/ACM Transactions on
// Networking 6(2), 1998). So one greedy client gets half of the pool, n greedy clients get one part of n+1 each, and as much stays free
// for new clients. The rule needs no list of greedy clients, no clock and no number to tune.
//
// It does not enforce the rule: the caller must call MayAcquire, because Acquire always succeeds.
package fairshare

import (
	"net"
	"net/netip"
)

// Pool is a number of slots, and the clients that use them. It is not safe for concurrent use: the caller must have a lock.
type Pool struct {
	size, used int
	by         map[netip.Addr]int // slots in use by client; only clients with at least one
}

// New returns a pool with all of its slots free.
func New(size int) Pool { return Pool{size: size, by: map[netip.Addr]int{}} }

// Resize changes the number of slots. If more are in use, they stay in use.
func (p *Pool) Resize(size int) { p.size = size }

// Size returns the number of slots.
func (p *Pool) Size() int { return p.size }

// Used returns the number of slots in use.
func (p *Pool) Used() int { return p.used }

// Free returns the number of free slots; it is negative if more slots are in use than the pool has.
func (p *Pool) Free() int { return p.size - p.used }

// UsedBy returns the number of slots that a client has.
func (p *Pool) UsedBy(client netip.Addr) int { return p.by[client] }

// Clients returns the number of clients that have a slot.
func (p *Pool) Clients() int { return len(p.by) }

// MayAcquire reports whether a client's fair share allows one more slot.
func (p *Pool) MayAcquire(client netip.Addr) bool { return p.by[client] < p.Free() }

// Acquire takes a slot for a client, even above its fair share.
func (p *Pool) Acquire(client netip.Addr) {
	p.used++
	p.by[client]++
}

// Release frees one of a client's slots.
func (p *Pool) Release(client netip.Addr) {
	p.used--
	if p.by[client]--; p.by[client] <= 0 {
		delete(p.by, client)
	}
}

// Client returns the address for which slots are counted: remote without port, zone and IPv4 mapping. IPv6 addresses count one by one.
// Counting by /64 would be fairer between an edge's clients on the Internet, but an agent's clients are pods: a /64 is the pod range of a
// whole node, and a pod needs CAP_NET_ADMIN for a second address. Refreshes that the cache sends for no client have no address, and share
// the zero value.
func Client(remote net.Addr) netip.Addr {
	switch c := remote.(type) {
	case *net.UDPAddr:
		return c.AddrPort().Addr().Unmap().WithZone("")
	case *net.TCPAddr:
		return c.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}
