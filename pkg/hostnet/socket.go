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
// sends it returns, so nobody ever waits for an answer; mdlayher/netlink's own socket starts a goroutine at each call to
// be ready for that, which costs a process as short as an ADD several times what the call does.
type socket struct{ fd int }

// ReadBuffer holds the answers to one transaction or dump; netlink's default (208 KiB) overflows on a busy node.
const ReadBuffer = 4 << 20

// ErrInterrupted is what the kernel says by a flag when a commit came between the parts of a dump.
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
	// Best effort: these only make errors speak and room for many of them.
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, ReadBuffer) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, ReadBuffer)
	}
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	return netlink.NewConn(s, 0), nil
}

// Close, Send, SendMessages, Receive and ReceiveIter are what netlink.NewConn asks for.
func (s *socket) Close() error {
	fd := s.fd
	s.fd = -1 // a second Close must not hit a number that was given away again
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

// ReceiveIter hands the messages of one datagram out one by one. None comes of a dump's last datagram that was interrupted: the error comes first.
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

// interrupted tells whether a dump ended with the flag that a commit came between. Of a commit beside the last part of a dump
// nothing but this message tells, which netlink.Conn keeps to itself; the part may hold rules of both generations.
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
				Length: uint32(length), Type: netlink.HeaderType(binary.NativeEndian.Uint16(buf[4:])), Flags: netlink.HeaderFlags(binary.NativeEndian.Uint16(buf[6:])),
				Sequence: binary.NativeEndian.Uint32(buf[8:]), PID: binary.NativeEndian.Uint32(buf[12:]),
			},
			Data: buf[unix.SizeofNlMsghdr:length:length],
		})
		buf = buf[min((length+3)&^3, len(buf)):] // messages begin at multiples of four
	}
	return out, nil
}
