// Package instancelock lets one process of a network namespace hold a lock: to be its prober, or to own its addresses in node-cache's
// place. It imports none of its siblings.
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
var ErrHeld = errors.New("another process has this place")

const (
	// most is the buffer size that the kernel sets for the largest one that can be requested: it doubles math.MaxInt32/2.
	most = math.MaxInt32 - 1
	// Two processes that claim the lock at the same time both give way and retry. One that is seated keeps it.
	tries      = 5
	retryPause = 20 * time.Millisecond
)

// Take takes the lock of that name in the calling thread's netns, until the returned file is closed or the process ends. It returns
// ErrHeld if another process holds it. It needs CAP_NET_ADMIN.
func Take(name string) (*os.File, error) {
	var err error
	for range tries {
		var f *os.File
		var seated bool
		f, seated, err = claim(name)
		if errors.Is(err, errNoDiag) {
			return byName(name)
		}
		if err == nil || seated || !errors.Is(err, ErrHeld) {
			return f, err
		}
		// Another process claimed it at the same moment.
		<-time.After(retryPause/4 + mrand.N(retryPause)) //nolint:gosec // the pause need not be secret
	}
	return nil, err
}

// errNoDiag means that the kernel cannot list unix sockets (CONFIG_UNIX_DIAG, usually a module).
var errNoDiag = errors.New("no sock_diag for unix sockets")

// byName takes the lock by its name alone, on kernels that cannot list other holders. The first process to bind the name keeps it.
func byName(name string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket for the place: %w", err)
	}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: "\x00" + name}); err != nil {
		_ = unix.Close(fd)
		if errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("%w: @%s", ErrHeld, name)
		}
		return nil, fmt.Errorf("bind the place: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// claim binds a socket and takes the lock if there is no other holder. seated reports that another process has the lock for good, not only
// a claim of its own under way.
func claim(name string) (f *os.File, seated bool, err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, false, fmt.Errorf("open a socket for the place: %w", err)
	}
	f = os.NewFile(uintptr(fd), name)
	defer func() {
		if err != nil {
			_ = f.Close()
			f = nil
		}
	}()
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, math.MaxInt32/2); err != nil {
		return f, false, fmt.Errorf("mark the place (it takes CAP_NET_ADMIN): %w", err)
	}
	own := fmt.Sprintf("%s.%d.%s", name, os.Getpid(), rand.Text())
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: "\x00" + own}); err != nil {
		return f, false, fmt.Errorf("bind the place: %w", err)
	}
	others, err := holders(name)
	if err != nil {
		return f, false, err
	}
	var who []string
	for _, o := range others {
		if o.name != own {
			pid, _, _ := strings.Cut(strings.TrimPrefix(o.name, name+"."), ".")
			who, seated = append(who, "process "+pid), seated || o.seated
		}
	}
	if who != nil {
		return f, seated, fmt.Errorf("%w (%s, by its own count)", ErrHeld, strings.Join(who, ", "))
	}
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, math.MaxInt32/2); err != nil {
		return f, false, fmt.Errorf("mark the place: %w", err)
	}
	return f, false, nil
}

// holder is a socket that a process with CAP_NET_ADMIN made. A seated one has taken the lock; the others are claims.
type holder struct {
	name   string
	seated bool
}

// Numbers of linux/sock_diag.h and linux/unix_diag.h.
const (
	sockDiagByFamily = 20
	showName         = 0x1
	showMeminfo      = 0x20
	attrName         = 0
	attrMeminfo      = 5
	meminfoRcvbuf    = 1
	meminfoSndbuf    = 3
)

// holders lists the sockets of the netns that count for a lock.
func holders(name string) ([]holder, error) {
	c, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, errNoDiag
	} else if err != nil {
		return nil, fmt.Errorf("look for others in this place: %w", err)
	}
	defer c.Close()
	ask := make([]byte, 24) // struct unix_diag_req
	ask[0] = unix.AF_UNIX
	binary.NativeEndian.PutUint32(ask[4:], math.MaxUint32) // in any state
	binary.NativeEndian.PutUint32(ask[12:], showName|showMeminfo)
	replies, err := c.Execute(netlink.Message{Header: netlink.Header{Type: sockDiagByFamily, Flags: netlink.Request | netlink.Dump}, Data: ask})
	if errors.Is(err, unix.ENOENT) {
		return nil, errNoDiag
	} else if err != nil {
		return nil, fmt.Errorf("look for others in this place: %w", err)
	}
	const header = 16 // struct unix_diag_msg
	var out []holder
	for _, m := range replies {
		if len(m.Data) < header {
			continue
		}
		attrs, err := netlink.UnmarshalAttributes(m.Data[header:])
		if err != nil {
			return nil, fmt.Errorf("look for others in this place: %w", err)
		}
		var h holder
		var rcvbuf, sndbuf uint32
		for _, a := range attrs {
			switch a.Type {
			case attrName:
				h.name = strings.TrimPrefix(string(a.Data), "\x00")
			case attrMeminfo:
				if len(a.Data) >= 4*(meminfoSndbuf+1) {
					rcvbuf, sndbuf = binary.NativeEndian.Uint32(a.Data[4*meminfoRcvbuf:]), binary.NativeEndian.Uint32(a.Data[4*meminfoSndbuf:])
				}
			}
		}
		if h.seated = sndbuf >= most; rcvbuf >= most && strings.HasPrefix(h.name, name+".") {
			out = append(out, h)
		}
	}
	return out, nil
}
