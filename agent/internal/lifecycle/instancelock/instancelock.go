// Package instancelock provides a lock that one process in a network namespace can hold: to be the prober there, or to own the addresses
// in node-cache mode.
//
// At most one process holds a lock, only a process with CAP_NET_ADMIN can hold or block it, and the kernel releases it when the process
// ends. A lock is an abstract unix socket, so containers need no shared folder. Because any process may bind any abstract name, a name
// alone proves nothing: each process that takes the lock binds a unique name with a common prefix, and its socket counts only if its
// receive buffer is larger than a process without CAP_NET_ADMIN can set (SO_RCVBUFFORCE, socket(7)). The kernel lists all unix sockets of
// the netns to every process (sock_diag(7), UDIAG_SHOW_MEMINFO).
//
// Failure policy: if Take returns an error, it holds no lock. If the kernel cannot list unix sockets (no sock_diag), the first process to
// bind the lock's name has the lock, so any process can block it.
package instancelock

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	mrand "math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ErrHeld means that another process holds the lock.
var ErrHeld = errors.New("another process has this lock")

const (
	// markedBuffer is the receive buffer size by which a lock's socket is recognised. The kernel doubles the requested size,
	// math.MaxInt32/2, which is the largest possible.
	markedBuffer = math.MaxInt32 - 1
	// If two processes try at the same time, both may find the other's socket. They then try again after random pauses.
	tries      = 5
	retryPause = 20 * time.Millisecond
)

// Take takes the lock with this name in the calling thread's netns. Closing the returned file, or the end of the process, releases it. It
// returns ErrHeld if another process holds it. It needs CAP_NET_ADMIN.
func Take(name string) (*os.File, error) {
	var err error
	for range tries {
		var f *os.File
		if f, err = try(name); errors.Is(err, errNoDiag) {
			return byName(name)
		} else if !errors.Is(err, ErrHeld) {
			return f, err
		}
		<-time.After(retryPause/4 + mrand.N(retryPause)) //nolint:gosec // a random pause, which need not be secret
	}
	return nil, err
}

// errNoDiag means that the kernel cannot list unix sockets (CONFIG_UNIX_DIAG, which is usually a module).
var errNoDiag = errors.New("no sock_diag for unix sockets")

// byName takes the lock by binding its name, on kernels that cannot list unix sockets. The first process to bind the name has the lock.
func byName(name string) (*os.File, error) {
	f, err := bind(name)
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("%w: @%s", ErrHeld, name)
	}
	return f, err
}

// bind opens a unix socket with the buffer size that marks a lock, and binds it to an abstract name.
func bind(name string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the lock's socket: %w", err)
	}
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, math.MaxInt32/2); err != nil {
		err = fmt.Errorf("mark the lock's socket (it takes CAP_NET_ADMIN): %w", err)
	} else if err = unix.Bind(fd, &unix.SockaddrUnix{Name: "\x00" + name}); err != nil {
		err = fmt.Errorf("bind the lock's socket: %w", err)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// try takes the lock unless another process has it or tries to take it at the same time. It returns ErrHeld then.
func try(name string) (*os.File, error) {
	own := fmt.Sprintf("%s.%d.%s", name, os.Getpid(), rand.Text())
	f, err := bind(own)
	if err != nil {
		return nil, err
	}
	names, err := holders(name)
	var others []string
	for _, n := range names {
		if n != own {
			pid, _, _ := strings.Cut(strings.TrimPrefix(n, name+"."), ".")
			others = append(others, "process "+pid)
		}
	}
	if err == nil && others != nil {
		err = fmt.Errorf("%w (%s in its own PID namespace)", ErrHeld, strings.Join(others, ", "))
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// Constants from linux/sock_diag.h and linux/unix_diag.h.
const (
	sockDiagByFamily = 20
	showName         = 0x1
	showMeminfo      = 0x20
	attrName         = 0
	attrMeminfo      = 5
	meminfoRcvbuf    = 1
)

// holders lists the names of the sockets in the netns that hold or try to take the lock with this name.
func holders(name string) (names []string, err error) {
	c, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, errNoDiag
	} else if err != nil {
		return nil, fmt.Errorf("list the lock's holders: %w", err)
	}
	defer c.Close()
	request := make([]byte, 24) // struct unix_diag_req
	request[0] = unix.AF_UNIX
	binary.NativeEndian.PutUint32(request[4:], math.MaxUint32) // sockets in any state
	binary.NativeEndian.PutUint32(request[12:], showName|showMeminfo)
	head := netlink.Header{Type: sockDiagByFamily, Flags: netlink.Request | netlink.Dump}
	replies, err := c.Execute(netlink.Message{Header: head, Data: request})
	if errors.Is(err, unix.ENOENT) {
		return nil, errNoDiag
	} else if err != nil {
		return nil, fmt.Errorf("list the lock's holders: %w", err)
	}
	const header = 16 // struct unix_diag_msg
	for _, m := range replies {
		if len(m.Data) < header {
			continue
		}
		attrs, err := netlink.UnmarshalAttributes(m.Data[header:])
		if err != nil {
			return nil, fmt.Errorf("list the lock's holders: %w", err)
		}
		var bound string
		marked := false
		for _, a := range attrs {
			switch a.Type {
			case attrName:
				bound = strings.TrimPrefix(string(a.Data), "\x00")
			case attrMeminfo:
				marked = len(a.Data) >= 4*(meminfoRcvbuf+1) && binary.NativeEndian.Uint32(a.Data[4*meminfoRcvbuf:]) >= markedBuffer
			}
		}
		if marked && strings.HasPrefix(bound, name+".") {
			names = append(names, bound)
		}
	}
	return names, nil
}
