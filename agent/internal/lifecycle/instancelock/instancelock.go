// Package instancelock gives one process of a network namespace a lock: to be its prober, or to own its addresses in node-cache mode.
//
// At most one process that has CAP_NET_ADMIN holds a lock, a process without that capability cannot block it, and it is released when the
// process ends. A lock is an abstract unix socket, so containers need no shared folder. Any process may bind any such name, so the name
// alone decides nothing: each holder binds a name of its own with a common prefix, and counts only if its socket has a receive buffer that
// takes CAP_NET_ADMIN (SO_RCVBUFFORCE, socket(7)). The kernel lists all sockets of the netns to every process (sock_diag(7),
// UDIAG_SHOW_MEMINFO).
//
// Failure policy: Take returns an error and holds nothing. If the kernel has no sock_diag for unix sockets, the name alone is the lock.
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
	// markedBuffer is the buffer size that the kernel sets for the largest one that can be requested: it doubles math.MaxInt32/2.
	markedBuffer = math.MaxInt32 - 1
	// Two processes that try at the same time both give way, and try again after different pauses.
	tries      = 5
	retryPause = 20 * time.Millisecond
)

// Take takes the lock of that name in the calling thread's netns, until the returned file is closed or the process ends. It returns
// ErrHeld if another process holds it. It needs CAP_NET_ADMIN.
func Take(name string) (*os.File, error) {
	var err error
	for range tries {
		var f *os.File
		if f, err = try(name); errors.Is(err, errNoDiag) {
			return byName(name)
		} else if !errors.Is(err, ErrHeld) {
			return f, err
		}
		<-time.After(retryPause/4 + mrand.N(retryPause)) //nolint:gosec // the pause need not be secret
	}
	return nil, err
}

// errNoDiag means that the kernel cannot list unix sockets (CONFIG_UNIX_DIAG, usually a module).
var errNoDiag = errors.New("no sock_diag for unix sockets")

// byName takes the lock by its name alone, on kernels that cannot list other holders. The first process to bind the name keeps it.
func byName(name string) (*os.File, error) {
	f, err := bind(name)
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("%w: @%s", ErrHeld, name)
	}
	return f, err
}

// bind opens a socket that has the lock's mark, and binds it to a name.
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

// try takes the lock if no other process has or tries to take it.
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

// Numbers of linux/sock_diag.h and linux/unix_diag.h.
const (
	sockDiagByFamily = 20
	showName         = 0x1
	showMeminfo      = 0x20
	attrName         = 0
	attrMeminfo      = 5
	meminfoRcvbuf    = 1
)

// holders lists the names of the netns's sockets that count for a lock.
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
	binary.NativeEndian.PutUint32(request[4:], math.MaxUint32) // in any state
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
