package listener

import (
	"net"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// overflows counts the UDP queries that the kernel dropped, nearly always because a socket's receive buffer was full, since the server has
// the socket. It is safe for concurrent use.
type overflows struct {
	mu   sync.Mutex             // guards the fields below
	past uint64                 // of sockets that are closed
	open map[*net.UDPConn]int64 // each socket's count when watch was called: a socket may come from another process
}

func (o *overflows) watch(conn *net.UDPConn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.open == nil {
		o.open = map[*net.UDPConn]int64{}
	}
	o.open[conn] = drops(conn)
}

// leave stops counting for a socket. It must be called before the socket is closed.
func (o *overflows) leave(conn *net.UDPConn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if before, ok := o.open[conn]; ok {
		o.past += since(before, drops(conn))
		delete(o.open, conn)
	}
}

func (o *overflows) count() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.past
	for conn, before := range o.open {
		n += since(before, drops(conn))
	}
	return n
}

// since returns the difference of two counts of 32 bits, which may wrap. It returns 0 if one is negative (unknown).
func since(before, now int64) uint64 {
	if before < 0 || now < 0 {
		return 0
	}
	return uint64(uint32(now) - uint32(before)) //nolint:gosec // it wraps as the kernel's does
}

// drops returns the number of datagrams for the socket that the kernel has dropped; -1 if unknown.
func drops(conn *net.UDPConn) int64 {
	// The index of the drops in SO_MEMINFO's numbers (linux/sock_diag.h, Linux 4.12).
	const dropsAt = 8
	var numbers [dropsAt + 1]uint32
	dropped := int64(-1)
	control(conn, func(fd int) {
		size := uint32(unsafe.Sizeof(numbers))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
			uintptr(unsafe.Pointer(&numbers)), uintptr(unsafe.Pointer(&size)), 0)
		if errno == 0 && size == uint32(unsafe.Sizeof(numbers)) {
			dropped = int64(numbers[dropsAt])
		}
	})
	return dropped
}
