package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// conn is one end of the connection between two agents in a handover. At most one goroutine reads and one writes.
type conn struct {
	*net.UnixConn
	buffer []byte // receive reads messages into it
	oob    []byte // receive reads control messages, which have the file descriptors, into it
}

func newConn(c *net.UnixConn) (*conn, error) {
	if err := checkPeer(c); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &conn{UnixConn: c, buffer: make([]byte, maxMessage+1), oob: make([]byte, unix.CmsgSpace(4*(maxSockets+1)))}, nil
}

// checkPeer returns an error unless the peer runs as root or as this process's user.
func checkPeer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); cerr != nil {
		return cerr
	}
	if err != nil {
		return fmt.Errorf("read the peer's credentials: %w", err)
	}
	return checkUser(cred)
}

func checkUser(cred *unix.Ucred) error {
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("the peer is user %d", cred.Uid)
	}
	return nil
}

// send writes one message together with file descriptors. It fails after wait. The caller does not close the files before it returns.
func (c *conn) send(k kind, body any, wait time.Duration, files ...*os.File) error {
	packet, err := encode(k, body)
	if err != nil {
		return err
	}
	if len(packet) > maxMessage {
		return fmt.Errorf("message %s: %d bytes are more than %d", k, len(packet), maxMessage)
	}
	if err := c.SetWriteDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	var fds []int
	for _, f := range files {
		raw, err := f.SyscallConn() // Fd would make the socket blocking, for its duplicates too
		if err == nil {
			err = raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) })
		}
		if err != nil {
			return fmt.Errorf("send %s: %w", k, err)
		}
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err = c.WriteMsgUnix(packet, rights, nil)
	runtime.KeepAlive(files) // else a finalizer could close a descriptor before the message is sent
	if err != nil {
		return fmt.Errorf("send %s: %w", k, err)
	}
	return nil
}

// errEnded means that the peer has closed the connection.
var errEnded = errors.New("it ended")

// receive reads one message of the wanted kind, its body and its file descriptors. It fails after wait. Only the messages "offer" and
// "yours" may have descriptors; with any other message it closes them and returns an error.
func (c *conn) receive(wait time.Duration, want kind, into any) ([]*os.File, error) {
	if err := c.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return nil, err
	}
	return c.read(want, into)
}

// read is receive without a time limit of its own.
func (c *conn) read(want kind, into any) ([]*os.File, error) {
	n, oobn, flags, _, err := c.ReadMsgUnix(c.buffer, c.oob)
	if n == 0 && (err == nil || errors.Is(err, io.EOF)) {
		return nil, errEnded // no message is empty
	}
	if err != nil {
		return nil, err
	}
	files, err := received(c.oob[:oobn])
	switch {
	case err != nil:
	case n > maxMessage || flags&unix.MSG_TRUNC != 0:
		err = errors.New("the message is too long")
	case flags&unix.MSG_CTRUNC != 0:
		err = errors.New("descriptors were lost")
	default:
		err = parse(c.buffer[:n], want, into)
	}
	descriptors := 0
	if o, ok := into.(*offer); ok {
		descriptors = len(o.Sockets)
	} else if want == kindYours {
		descriptors = 1
	}
	if err == nil && len(files) != descriptors {
		err = fmt.Errorf("message %s: %d descriptors, want %d", want, len(files), descriptors)
	}
	if err != nil {
		closeFiles(files)
		return nil, err
	}
	return files, nil
}

// receiveLast receives a message without content. If none has come after wait, the peer cannot send any more from then on: a message is
// either returned here, or the peer's send fails, even if one of the processes was stopped meanwhile (the kernel does each in one step).
func (c *conn) receiveLast(wait time.Duration, want kind) error {
	_, err := c.receive(wait, want, nil)
	if err != nil {
		_ = c.CloseRead()
		_ = c.SetReadDeadline(time.Time{}) // the next read waits for nothing, however late it comes
		if _, late := c.read(want, nil); late == nil {
			return nil
		}
	}
	return err
}

// awaitClose waits until the peer has closed the connection, wait has passed or ctx ends. It needs no reading, which may be closed.
func (c *conn) awaitClose(ctx context.Context, wait time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil || c.SetReadDeadline(time.Now().Add(wait)) != nil {
		return
	}
	defer context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })()
	_ = raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(p, 0)
		return n > 0 && p[0].Revents&unix.POLLHUP != 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}

func received(oob []byte) (files []*os.File, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	controls, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for _, control := range controls {
		fds, err := unix.ParseUnixRights(&control)
		if err != nil {
			closeFiles(files)
			return nil, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "handed over"))
		}
	}
	return files, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // the files are duplicates
	}
}
