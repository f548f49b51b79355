package listener

import (
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// room is what a UDP socket may have under way: answers that wait in the queue of a pod's link, where a shaper holds them back (the
// bandwidth plugin's, for instance), count as the socket's until they leave. One such pod could fill the socket with answers to itself,
// and then nobody else had any.
//
// Once the socket is full it gets as much again, and each packet that stays in a queue tells whose link it is: to others a packet is gone
// when the system call returns. Clients behind such links have no further answers while half of the first part is under way.
//
// Whoever holds the socket's lock for writing uses it (syscall.RawConn.Write), but for dropped.
type room struct {
	most    int                 // what was full, in bytes as the kernel counts; 0: nothing was, since the answers under way were few
	slow    map[netip.Addr]bool // clients with a packet in a queue, since then
	dropped *atomic.Uint64      // the quota's
}

// slowMost bounds the clients that are remembered. One that is forgotten is found again by its next answer.
const slowMost = 1024

// send sends packets one by one, each or not, and returns the last error of one that could not be sent.
func (r *room) send(fd uintptr, packets []packet) (last error) {
	for i := range packets {
		client := (*address)(unsafe.Pointer(packets[i].header.Name)).client()
		before, err := underWay(fd), unix.EAGAIN
		if before <= r.most/2 || !r.slow[client] {
			_, err = sendmmsg(fd, packets[i:i+1])
		}
		switch {
		case err != 0:
			r.dropped.Add(1)
			last = err
		case underWay(fd) <= before:
			delete(r.slow, client)
		default:
			if len(r.slow) >= slowMost {
				clear(r.slow)
			}
			r.slow[client] = true
		}
	}
	if underWay(fd) < r.most/16 {
		size(fd, r.most)
		r.most, r.slow = 0, nil
	}
	return last
}

// fill notes that the socket is full.
func (r *room) fill(fd uintptr) {
	most, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		most = 1 // cannot be: the socket is open
	}
	r.most, r.slow = most, map[netip.Addr]bool{}
	size(fd, 2*most)
}

// size changes how much of a socket may be under way. Best effort: where the capability is missing, net.core.wmem_max bounds it.
func size(fd uintptr, bytes int) {
	given := bytes / 2 // the kernel doubles it (socket(7))
	if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, given) != nil {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, given)
	}
}

// underWay is how many bytes of a socket have not left yet, as the kernel counts (SIOCOUTQ, Linux 2.6.30 for UDP).
func underWay(fd uintptr) int {
	n, _ := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) // an error: nothing can be sent either
	return n
}
