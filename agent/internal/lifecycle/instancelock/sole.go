// Package instancelock holds a right that one process of a netns may have at a time: to be its prober, or to have its addresses in
// node-cache's place. It is a leaf: it imports none of its siblings.
//
// A place is an abstract unix socket, which goes with the process that bound it and needs no folder that two containers share.
// Such names are anybody's to take, so no name decides: each holder binds one of its own with a common beginning, and counts only
// if its socket shows that CAP_NET_ADMIN made it, by a receive buffer that nobody without can have (SO_RCVBUFFORCE, socket(7)).
// The kernel tells of all sockets of the netns (sock_diag(7), UDIAG_SHOW_MEMINFO), whoever asks.
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

// ErrHeld says that another process has the place.
var ErrHeld = errors.New("another process has this place")

const (
	// most is the buffer that the kernel keeps for the largest that can be asked for: twice half of the largest number.
	most = math.MaxInt32 - 1
	// claims that meet give way and come again; one that is seated stays.
	tries     = 5
	comeAgain = 20 * time.Millisecond
)

// Take takes the place of that name in the calling thread's netns, until the returned file is closed or the process ends.
// ErrHeld: another process has it. It takes CAP_NET_ADMIN.
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
		// Another came at the same moment.
		<-time.After(comeAgain/4 + mrand.N(comeAgain)) //nolint:gosec // who comes first is nobody's secret
	}
	return nil, err
}

// errNoDiag: the kernel cannot tell of unix sockets (CONFIG_UNIX_DIAG, a module as a rule).
var errNoDiag = errors.New("no sock_diag for unix sockets")

// byName is a place by its name alone, for kernels that cannot tell who else has one. Whoever binds the name keeps it.
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

// claim binds a socket and takes the place if there is no other holder. seated: there is one for good.
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

// holder is a socket that CAP_NET_ADMIN made.
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

// holders lists the sockets of the netns that count for a place.
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
