package generator

import (
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// batch is how many messages one system call takes.
const batch = 32

// mmsghdr is struct mmsghdr of recvmmsg(2), which x/sys lacks.
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

// socket is one connected UDP socket with the queries in flight on it. Ids count up, so the oldest query has the lowest.
type socket struct {
	fd           int
	next, oldest uint16 // ids: of the next query, and of the oldest one that may be in flight
	flying       int
	slots        [slots]slot
}

// slots is how many queries one socket can have in flight: a power of two, of which the low bits of an id choose one.
const slots = 4096

// slot is one query in flight, or one that is over.
type slot struct {
	due      time.Duration // since the start
	question int32
	number   int32 // of a unique name, less the load's first
	state    state
}

type state uint8

const (
	over state = iota
	flying
	lost // an answer may come yet, and is late
)

func (s *socket) at(id uint16) *slot { return &s.slots[id&(slots-1)] }

func dial(server netip.AddrPort) (*socket, error) {
	domain := unix.AF_INET6
	var to unix.Sockaddr = &unix.SockaddrInet6{Port: int(server.Port()), Addr: server.Addr().As16()}
	if server.Addr().Is4() {
		domain = unix.AF_INET
		to = &unix.SockaddrInet4{Port: int(server.Port()), Addr: server.Addr().As4()}
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("load: open a socket: %w", err)
	}
	// Room for all answers in flight; the default holds 270 small ones.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
	if err := unix.Connect(fd, to); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("load: connect to %s: %w", server, err)
	}
	return &socket{fd: fd}, nil
}

// messages are the buffers of one system call, used for all sockets.
type messages struct {
	headers [batch]mmsghdr
	vectors [batch]unix.Iovec
	buffers [batch][2048]byte
}

func newMessages() *messages {
	m := &messages{}
	for i := range m.headers {
		m.vectors[i].Base = &m.buffers[i][0]
		m.headers[i].hdr.Iov = &m.vectors[i]
		m.headers[i].hdr.SetIovlen(1)
	}
	return m
}

// send sends the first n messages. A refusal that the kernel reports (ICMP: no socket is bound) belongs to an earlier message.
func (m *messages) send(s *socket, n int) error {
	for from, refusals := 0, 0; from < n; {
		sent, _, e := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&m.headers[from])), uintptr(n-from), 0, 0, 0)
		switch {
		case e == 0:
			from += int(sent)
		case e == unix.ECONNREFUSED && refusals <= 2*n:
			refusals++
		case e == unix.EAGAIN || e == unix.ENOBUFS: // full: wait until there is room
			_, _ = poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}, time.Millisecond)
		case e != unix.EINTR:
			return fmt.Errorf("load: send: %w", e)
		}
	}
	return nil
}

// receive takes what is there, at most a batch.
func (m *messages) receive(s *socket) (int, error) {
	for i := range m.vectors {
		m.vectors[i].SetLen(len(m.buffers[i]))
	}
	for range batch {
		n, _, e := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&m.headers[0])), batch, unix.MSG_DONTWAIT, 0, 0)
		switch {
		case e == 0:
			return int(n), nil
		case e == unix.EAGAIN:
			return 0, nil
		case e != unix.ECONNREFUSED && e != unix.EINTR:
			return 0, fmt.Errorf("load: receive: %w", e)
		}
	}
	return 0, nil
}

func (m *messages) received(i int) []byte {
	return m.buffers[i][:min(int(m.headers[i].len), len(m.buffers[i]))]
}

// poll waits until a socket is ready or the time is up. It blocks the thread: the runtime's poller would cost more than the kernel.
func poll(fds []unix.PollFd, wait time.Duration) (int, error) {
	timeout := unix.NsecToTimespec(max(wait, 0).Nanoseconds())
	n, _, e := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), uintptr(len(fds)), uintptr(unsafe.Pointer(&timeout)), 0, 0, 0)
	switch e {
	case 0:
		return int(n), nil
	case unix.EINTR:
		return 0, nil
	}
	return 0, fmt.Errorf("load: wait: %w", e)
}
