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

// socket is a blocking netlink socket without the runtime's poller. The kernel answers a request before the call that
// sends it returns, so reading never blocks; mdlayher/netlink's own socket starts a goroutine at each call to
// be ready for that, which costs a process as short as an ADD several times what the call does.
type socket struct{ fd int }

// ReadBuffer holds the answers to one transaction or dump; netlink's default (208 KiB) overflows on a busy node.
const ReadBuffer = 4 << 20

// ErrInterrupted means that a commit happened between the parts of a dump, which the kernel reports by a flag.
var ErrInterrupted = fmt.Errorf("dump interrupted: %w", unix.EINTR)

// Dial opens a socket of a netlink protocol in the netns behind nsFD. The caller closes it.
func Dial(protocol, nsFD int) (*netlink.Conn, error) {
	s := &socket{fd: -1}
	open := func() (err error) {
		s.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
		return os.NewSyscallError("socket", err)
	}
	if err := InNetNS(nsFD, open); err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	if err := unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, errors.Join(fmt.Errorf("open netlink socket: %w", os.NewSyscallError("bind", err)), s.Close())
	}
	// Best effort: these add details to errors, and buffer space for many of them.
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, ReadBuffer) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, ReadBuffer)
	}
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	return netlink.NewConn(s, 0), nil
}

// Close, Send, SendMessages, Receive and ReceiveIter implement netlink.Socket.
func (s *socket) Close() error {
	fd := s.fd
	s.fd = -1 // a second Close must not close a reused descriptor
	return os.NewSyscallError("close", unix.Close(fd))
}

// Send sends one message.
func (s *socket) Send(m netlink.Message) error { return s.SendMessages([]netlink.Message{m}) }

// SendMessages sends all messages in one call, as a transaction needs it.
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

// ReceiveIter yields the messages of one datagram. If the dump was interrupted, it yields only the error for the last datagram.
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

// interrupted reports whether a dump's final message has the flag for a commit during the dump. Only this message reports a commit during
// the last part, which may then have rules of both generations, and netlink.Conn does not pass it on.
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
