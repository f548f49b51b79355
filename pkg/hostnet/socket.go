package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// socket is a blocking netlink socket that does not use the Go runtime's poller. The kernel answers a request before the system call that
// sends it returns, so a read never blocks. mdlayher/netlink's own socket starts a goroutine for each call. In a process as short as a CNI
// ADD, that costs several times as much as the call itself.
type socket struct{ fd int }

// ReadBuffer is the size of a netlink socket's receive buffer, in bytes: enough for the answers to one transaction or dump. The default
// (208 KiB) overflows on a busy node.
const ReadBuffer = 4 << 20

// ErrInterrupted means that the listed objects changed between the parts of a dump. The kernel reports this by a flag.
var ErrInterrupted = fmt.Errorf("dump interrupted: %w", unix.EINTR)

// Dial opens a socket of a netlink protocol, for example NETLINK_ROUTE, in the netns behind nsFD (0: the calling thread's). The caller
// closes it.
func Dial(protocol, nsFD int) (*netlink.Conn, error) {
	s := &socket{fd: -1}
	open := func() (err error) {
		s.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
		return os.NewSyscallError("socket", err)
	}
	if err := (Handle{nsFD: nsFD}).Do(open); err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	if err := unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, errors.Join(fmt.Errorf("open netlink socket: %w", os.NewSyscallError("bind", err)), s.Close())
	}
	// Errors are ignored. Without these options, the socket has a smaller receive buffer, and the kernel's errors have no text.
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, ReadBuffer) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, ReadBuffer)
	}
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	return netlink.NewConn(s, 0), nil
}

// Close closes the socket. Like the other exported methods, it implements netlink.Socket.
func (s *socket) Close() error {
	fd := s.fd
	s.fd = -1 // a second Close must not close a reused descriptor
	return os.NewSyscallError("close", unix.Close(fd))
}

// Send sends one message.
func (s *socket) Send(m netlink.Message) error { return s.SendMessages([]netlink.Message{m}) }

// SendMessages sends all messages in one datagram, because the kernel requires this for a transaction.
func (s *socket) SendMessages(messages []netlink.Message) error {
	var buf []byte
	for _, m := range messages {
		b, err := m.MarshalBinary()
		if err != nil {
			return err
		}
		buf = append(buf, b...)
	}
	for {
		err := unix.Sendto(s.fd, buf, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("sendto", err)
		}
	}
}

// Receive returns the messages of one datagram.
func (s *socket) Receive() ([]netlink.Message, error) {
	size, err := s.receive(nil, unix.MSG_PEEK|unix.MSG_TRUNC)
	if err != nil {
		return nil, err
	}
	buf := make([]byte, size)
	if size, err = s.receive(buf, 0); err != nil {
		return nil, err
	}
	messages, err := splitMessages(buf[:min(size, len(buf))])
	if err == nil && interrupted(messages) {
		err = ErrInterrupted
	}
	return messages, err
}

// ReceiveIter yields the messages of one datagram. On an error, or if the datagram ends an interrupted dump, it yields only the error.
func (s *socket) ReceiveIter() iter.Seq2[netlink.Message, error] {
	return func(yield func(netlink.Message, error) bool) {
		messages, err := s.Receive()
		if err != nil {
			yield(netlink.Message{}, err)
			return
		}
		for _, m := range messages {
			if !yield(m, nil) {
				return
			}
		}
	}
}

// interrupted reports whether the messages have the end of a dump (NLMSG_DONE) with the flag NLM_F_DUMP_INTR. Only this message reports a
// change during the last part of the dump, which may then mix old and new objects. netlink.Conn does not pass this message on.
func interrupted(messages []netlink.Message) bool {
	return slices.ContainsFunc(messages, func(m netlink.Message) bool {
		return m.Header.Type == netlink.Done && m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
	})
}

func (s *socket) receive(buf []byte, flags int) (int, error) {
	for {
		n, _, err := unix.Recvfrom(s.fd, buf, flags)
		if !errors.Is(err, unix.EINTR) {
			return n, os.NewSyscallError("recvfrom", err)
		}
	}
}

// splitMessages cuts a datagram into its messages.
func splitMessages(buf []byte) ([]netlink.Message, error) {
	var out []netlink.Message
	for len(buf) >= unix.SizeofNlMsghdr {
		length := int(binary.NativeEndian.Uint32(buf))
		if length < unix.SizeofNlMsghdr || length > len(buf) {
			return nil, fmt.Errorf("netlink message of %d bytes where %d are left", length, len(buf))
		}
		out = append(out, netlink.Message{
			Header: netlink.Header{
				Length: uint32(length), Type: netlink.HeaderType(binary.NativeEndian.Uint16(buf[4:])),
				Flags:    netlink.HeaderFlags(binary.NativeEndian.Uint16(buf[6:])),
				Sequence: binary.NativeEndian.Uint32(buf[8:]), PID: binary.NativeEndian.Uint32(buf[12:]),
			},
			Data: buf[unix.SizeofNlMsghdr:length:length],
		})
		buf = buf[min((length+3)&^3, len(buf)):] // messages begin at multiples of four
	}
	return out, nil
}
