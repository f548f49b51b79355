package listener

import (
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// room watches a UDP socket's send buffer. If a shaper (for example of the CNI's bandwidth plugin) queues answers on a pod's link, they
// count against the socket's buffer until they leave. So one such pod could fill the buffer with its answers, and no other pod would get
// any.
//
// When the buffer is full, its size is doubled, until less than a sixteenth of the original size is queued. Meanwhile, a client counts as
// slow if its packet is still queued after the system call; packets to other clients have left by then. A slow client gets no answers
// while more than half of the original size is queued.
//
// Except for dropped, it is used only inside syscall.RawConn.Write, which holds the socket's lock for writing.
type room struct {
	most    int                 // the buffer's size before it was doubled, in bytes as the kernel counts; 0: it is not doubled
	slow    map[netip.Addr]bool // clients whose last packet was still queued after its system call
	dropped *atomic.Uint64      // quota.dropped
}

// maxSlow is the maximum of slow clients that are remembered. When it is reached, all are forgotten, and found again at their next
// answer.
const maxSlow = 1024

// send sends the packets one by one. It drops those for slow clients while more than half of the original size is queued. It returns the
// last error.
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
			if len(r.slow) >= maxSlow {
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

// fill doubles the size of the socket's send buffer, which is full.
func (r *room) fill(fd uintptr) {
	most, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		most = 1 // not expected, because the socket is open
	}
	r.most, r.slow = most, map[netip.Addr]bool{}
	size(fd, 2*most)
}

// size sets the size of a socket's send buffer. Without CAP_NET_ADMIN, net.core.wmem_max limits it.
func size(fd uintptr, bytes int) {
	given := bytes / 2 // the kernel doubles it (socket(7))
	if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, given) != nil {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, given)
	}
}

// underWay returns how many bytes in the socket's send buffer have not been sent, as the kernel counts (SIOCOUTQ).
func underWay(fd uintptr) int {
	n, _ := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) // an error: nothing can be sent either
	return n
}
