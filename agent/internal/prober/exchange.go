package prober

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// port is where DNS is asked.
const port = 53

// maxAnswer is more than any answer to the prober's questions; a longer datagram is cut, and then is no answer.
const maxAnswer = 4096

// datagrams is a connected UDP socket that is kept: at the prober's pace a socket a question would be most of its cost.
type datagrams struct {
	mu     sync.Mutex // one question at a time
	f      *os.File
	buffer [maxAnswer]byte
}

func openDatagrams(r *room, source, target netip.Addr) (*datagrams, error) {
	f, err := open(r, unix.SOCK_DGRAM, source)
	if err != nil {
		return nil, err
	}
	if err := connect(f, target); err != nil {
		f.Close()
		return nil, err
	}
	return &datagrams{f: f}, nil
}

func (d *datagrams) close() { d.f.Close() }

// exchange sends the question and returns the first packet that is an answer to it, valid until the next exchange.
func (d *datagrams) exchange(ctx context.Context, wire []byte, mine func([]byte) bool) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer until(ctx, d.f)()
	_, err := d.f.Write(wire)
	if errors.Is(err, unix.ECONNREFUSED) {
		// What an earlier question met is reported now; it must not cost this one.
		_, err = d.f.Write(wire)
	}
	for err == nil {
		var n int
		n, err = d.f.Read(d.buffer[:])
		if errors.Is(err, io.EOF) { // an empty datagram
			err = nil
		}
		if err == nil && mine(d.buffer[:n]) {
			return append([]byte(nil), d.buffer[:n]...), nil
		}
	}
	return nil, because(ctx, err)
}

// provingDatagrams asks over a new UDP socket, again each second: what proves the way is one answer, not a lossless link.
func provingDatagrams(ctx context.Context, r *room, source, target netip.Addr, q question) ([]byte, error) {
	const again = time.Second
	d, err := openDatagrams(r, source, target)
	if err != nil {
		return nil, err
	}
	defer d.close()
	for {
		attempt, cancel := context.WithTimeout(ctx, again)
		packet, err := d.exchange(attempt, q.wire, q.mine)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) {
			return packet, err
		}
	}
}

// stream asks over a new TCP connection, so that it is accepting that is proven, and ends it by a reset: that leaves no
// TIME_WAIT on either side, and a process that is killed leaves no half-closed socket to keep the netns alive.
func stream(ctx context.Context, r *room, source, target netip.Addr, wire []byte) ([]byte, error) {
	f, err := open(r, unix.SOCK_STREAM, source)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	defer until(ctx, f)()
	packet, err := converse(f, target, wire)
	if err != nil {
		return nil, because(ctx, err)
	}
	return packet, nil
}

func converse(f *os.File, target netip.Addr, wire []byte) ([]byte, error) {
	if err := connect(f, target); err != nil {
		return nil, err
	}
	if _, err := f.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(wire))), wire...)); err != nil { //nolint:gosec // a question is short
		return nil, err
	}
	var length [2]byte
	if _, err := io.ReadFull(f, length[:]); err != nil {
		return nil, closedEarly(err)
	}
	packet := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(f, packet)
	return packet, closedEarly(err)
}

func closedEarly(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the server closed the connection without an answer")
	}
	return err
}

// open makes a socket in the room, bound to source.
func open(r *room, kind int, source netip.Addr) (*os.File, error) {
	fd, err := -1, errClosed
	r.do(func() { fd, err = socket(kind, source) })
	if err != nil {
		return nil, err
	}
	// The runtime polls it, as it does its own sockets, because it does not block.
	return os.NewFile(uintptr(fd), "prober socket"), nil
}

func socket(kind int, source netip.Addr) (int, error) {
	af := unix.AF_INET6
	if source.Is4() {
		af = unix.AF_INET
	}
	fd, err := unix.Socket(af, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open socket: %w", err)
	}
	if kind == unix.SOCK_STREAM {
		// Linger for no time: closing resets. Set first, so that it also holds for a process that is killed.
		err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(source, 0))
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("bind to %s: %w", source, err)
	}
	return fd, nil
}

// connect connects f, waiting where the protocol needs it, until f's deadline.
func connect(f *os.File, target netip.Addr) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	begun := false
	var result error
	err = raw.Write(func(fd uintptr) bool {
		if !begun {
			begun = true
			result = unix.Connect(int(fd), sockaddr(target, port))
			return !errors.Is(result, unix.EINPROGRESS)
		}
		// Writable: connected, or failed with what the socket tells. A wake-up without either means to go on waiting.
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil {
			result = err
			return true
		}
		if code != 0 {
			result = unix.Errno(code)
			return true
		}
		if _, err := unix.Getpeername(int(fd)); errors.Is(err, unix.ENOTCONN) {
			return false
		}
		result = nil
		return true
	})
	if err == nil {
		err = result
	}
	if err != nil {
		return fmt.Errorf("connect to %s: %w", target, err)
	}
	return nil
}

func sockaddr(a netip.Addr, port int) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4(), Port: port}
	}
	return &unix.SockaddrInet6{Addr: a.As16(), Port: port}
}

// until makes f's operations end with ctx. The function returned takes that back and must be called.
func until(ctx context.Context, f *os.File) func() {
	deadline, _ := ctx.Deadline() // none: the zero time, which means none to f as well
	_ = f.SetDeadline(deadline)
	if ctx.Done() == nil {
		return func() {}
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = f.SetDeadline(time.Unix(1, 0))
		close(ended)
	})
	return func() {
		if !stop() {
			// It has begun; the next user's deadline must not be overwritten by it.
			<-ended
		}
	}
}

// because prefers ctx's own end to the deadline error that it caused.
func because(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return err
}
