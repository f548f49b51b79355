// Package fairshare shares a number of places by who asks, so that one source's flood does not take what others need. It is a
// leaf: it imports none of its siblings.
//
// A source may have as many places as are left free (dynamic thresholds, Choudhury and Hahne, IEEE/ACM Transactions on
// Networking 6(2), 1998). One greedy source alone gets half, n of them one part of n+1 each, and as much stays free for
// those who come. It needs no list of who is greedy, no clock and no number to tune.
package fairshare

import (
	"net"
	"net/netip"
)

// Places is a number of places and who has them. It is not safe for concurrent use: its owner has a lock already.
type Places struct {
	most, taken int
	by          map[netip.Addr]int // never more sources than places taken
}

// Of returns so many places, all of them free.
func Of(most int) Places { return Places{most: most, by: map[netip.Addr]int{}} }

// SetMost changes how many places there are. What is taken beyond them stays.
func (p *Places) SetMost(most int) { p.most = most }

// Most is how many places there are.
func (p *Places) Most() int { return p.most }

// Taken is how many of them are taken.
func (p *Places) Taken() int { return p.taken }

// Free is how many are left; below zero where there were more before.
func (p *Places) Free() int { return p.most - p.taken }

// Held is how many src has.
func (p *Places) Held(src netip.Addr) int { return p.by[src] }

// Sources is how many have any.
func (p *Places) Sources() int { return len(p.by) }

// MayTake tells whether src may have one more.
func (p *Places) MayTake(src netip.Addr) bool { return p.by[src] < p.Free() }

// Take gives src one more, whether it may have it or not.
func (p *Places) Take(src netip.Addr) {
	p.taken++
	p.by[src]++
}

// Give takes one of src's back.
func (p *Places) Give(src netip.Addr) {
	p.taken--
	if p.by[src]--; p.by[src] <= 0 {
		delete(p.by, src)
	}
}

// Source is whom something is counted for: the address, also in IPv6. A /64 would be fairer between hosts of the Internet;
// here it is the pod range of the whole node, and a pod that wants a second address needs CAP_NET_ADMIN. What no client
// asked has a share of its own.
func Source(client net.Addr) netip.Addr {
	switch c := client.(type) {
	case *net.UDPAddr:
		return c.AddrPort().Addr().Unmap().WithZone("")
	case *net.TCPAddr:
		return c.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}
