package listener

import (
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// room is a UDP socket's send buffer. Answers that a shaper holds back in the queue of a pod's link (for example the bandwidth plugin's)
// count against the socket until they leave. One such pod could fill the buffer with its own answers, and no other pod would get any.
//
// When the buffer is full, its size is doubled. From then on each packet that stays in a queue after its system call marks its client as
// slow; packets to other clients are gone by then. A slow client gets no answers while more than half of the original buffer is queued.
//
// Only the holder of the socket's lock for writing uses it (syscall.RawConn.Write), except for dropped.
type room struct {
	most    int                 // the original size, in bytes as the kernel counts; 0: the buffer is not full
	slow    map[netip.Addr]bool // clients with a packet in a queue
	dropped *atomic.Uint64      // the quota's
}

// maxSlow bounds the slow clients that are remembered. The next answer finds a forgotten one again.
const maxSlow = 1024

// send tries to send packets one by one, and returns the last error.
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

// fill notes that the socket is full.
func (r *room) fill(fd uintptr) {
	most, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		most = 1 // cannot be: the socket is open
	}
	r.most, r.slow = most, map[netip.Addr]bool{}
	size(fd, 2*most)
}

// size changes a socket's send buffer. Best effort: without the capability, net.core.wmem_max bounds it.
func size(fd uintptr, bytes int) {
	given := bytes / 2 // the kernel doubles it (socket(7))
	if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, given) != nil {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, given)
	}
}

// underWay is how many bytes of a socket are queued, as the kernel counts (SIOCOUTQ, Linux 2.6.30 for UDP).
func underWay(fd uintptr) int {
	n, _ := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) // an error: nothing can be sent either
	return n
}
