package prober

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
)

// port is the DNS port.
const port = 53

// maxAnswer is the size of the buffer for an answer over UDP, in bytes. No answer to the prober's queries is larger. The kernel truncates a
// longer datagram, which then cannot be parsed.
const maxAnswer = 4096

// datagrams is a connected UDP socket that stays open between queries, because opening a socket would be most of a probe's cost. It
// has one query at a time.
type datagrams struct {
	f      *os.File
	buffer [maxAnswer]byte
}

func openDatagrams(from *sockets, source, target netip.Addr) (*datagrams, error) {
	f, err := open(from, unix.SOCK_DGRAM, source)
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

// exchange sends the query and returns the first received packet that answers it. It returns an error when ctx ends.
func (d *datagrams) exchange(ctx context.Context, q question) ([]byte, error) {
	defer bindToContext(ctx, d.f)()
	_, err := d.f.Write(q.wire)
	if errors.Is(err, unix.ECONNREFUSED) {
		// The kernel may report here the ICMP error that an earlier query got. Send again, so that this query does not fail because of it.
		_, err = d.f.Write(q.wire)
	}
	for err == nil {
		var n int
		n, err = d.f.Read(d.buffer[:])
		if errors.Is(err, io.EOF) { // os.File.Read returns io.EOF for an empty datagram
			err = nil
		}
		if err == nil && q.matches(d.buffer[:n]) {
			return append([]byte(nil), d.buffer[:n]...), nil
		}
	}
	return nil, contextErrorOf(ctx, err)
}

// queryRepeatedly sends the query over a new UDP socket, and repeats it each second until it is answered, another error occurs or ctx ends:
// a lost packet does not mean that the path fails.
func queryRepeatedly(ctx context.Context, from *sockets, source, target netip.Addr, q question) ([]byte, error) {
	const again = time.Second
	d, err := openDatagrams(from, source, target)
	if err != nil {
		return nil, err
	}
	defer d.close()
	for {
		attempt, cancel := context.WithTimeout(ctx, again)
		packet, err := d.exchange(attempt, q)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return packet, err
		}
	}
}

// openAndQuery sends the query over a new TCP connection, so that an answer also shows that the server accepts connections. The connection
// ends with a reset, even if the process is killed. So there is no TIME_WAIT on either side, and no half-closed socket keeps the netns
// alive.
func openAndQuery(ctx context.Context, from *sockets, source, target netip.Addr, wire []byte) ([]byte, error) {
	f, err := open(from, unix.SOCK_STREAM, source)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	defer bindToContext(ctx, f)()
	packet, err := queryStream(f, target, wire)
	return packet, contextErrorOf(ctx, err)
}

func queryStream(f *os.File, target netip.Addr, wire []byte) ([]byte, error) {
	if err := connect(f, target); err != nil {
		return nil, err
	}
	length := binary.BigEndian.AppendUint16(nil, uint16(len(wire))) //nolint:gosec // a query is short
	if _, err := f.Write(append(length, wire...)); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(f, length); err != nil {
		return nil, explainEOF(err)
	}
	packet := make([]byte, binary.BigEndian.Uint16(length))
	_, err := io.ReadFull(f, packet)
	return packet, explainEOF(err)
}

func explainEOF(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the server closed the connection without an answer")
	}
	return err
}

// open makes a non-blocking socket in the prober's netns, bound to source.
func open(from *sockets, kind int, source netip.Addr) (*os.File, error) {
	fd, err := from.get(socketKind{family: hostnet.Family(source), kind: kind})
	if err != nil {
		return nil, err
	}
	if err := prepare(fd, kind, source); err != nil {
		unix.Close(fd)
		return nil, err
	}
	// os.NewFile hands the non-blocking socket to the runtime's poller.
	return os.NewFile(uintptr(fd), "prober socket"), nil
}

func prepare(fd, kind int, source netip.Addr) error {
	if kind == unix.SOCK_STREAM {
		// A linger time of zero makes close send a reset. It is set before anything else, so that it also applies if the process is
		// killed.
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
			return fmt.Errorf("set linger: %w", err)
		}
		// With this option the kernel chooses the source port in connect(2), where it knows the destination, which is cheaper. If the
		// option cannot be set, bind(2) chooses a port.
		_ = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	}
	if err := unix.Bind(fd, sockaddr(source, 0)); err != nil {
		return fmt.Errorf("bind to %s: %w", source, err)
	}
	return nil
}

// connect connects f to target, and waits for the handshake until f's deadline. A further connect(2) returns how the first one ended, or
// EALREADY. Over a veth the handshake is mostly complete when the first one returns, so the second one comes before any waiting.
func connect(f *os.File, target netip.Addr) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Write(func(fd uintptr) (done bool) {
		if result = unix.Connect(int(fd), sockaddr(target, port)); errors.Is(result, unix.EINPROGRESS) {
			result = unix.Connect(int(fd), sockaddr(target, port))
		}
		if errors.Is(result, unix.EALREADY) {
			// An ICMP error that came while connect(2) had the socket is known to SO_ERROR alone.
			if code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); err == nil && code != 0 {
				result = unix.Errno(code)
			}
		}
		return !errors.Is(result, unix.EALREADY)
	})
	if err = cmp.Or(err, result); err != nil {
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

// bindToContext makes f's reads and writes fail once ctx ends. The caller must call the returned function, which undoes that. f has no
// deadline before ctx ends, which saves a timer for each probe.
func bindToContext(ctx context.Context, f *os.File) func() {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = f.SetDeadline(time.Unix(1, 0))
		close(ended)
	})
	return func() {
		if !stop() {
			// AfterFunc's function has begun to run. Wait until it has set the deadline, and remove that deadline, so that the
			// socket's next query does not get it.
			<-ended
			_ = f.SetDeadline(time.Time{})
		}
	}
}

// contextErrorOf returns ctx's error instead of err if ctx was canceled, because err is then only the deadline error that this caused.
func contextErrorOf(ctx context.Context, err error) error {
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return err
}
