package prober

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
)

// holdName is an abstract socket address. Such names belong to a netns and vanish with the process that bound them, which
// is just what the prober's link does, so it tells a dead predecessor's link from a live one's.
const holdName = "@" + steer.ProberInterface

// hold is the right to be the prober of a netns.
type hold struct{ l net.Listener }

func takeHold(h host) (*hold, error) {
	var l net.Listener
	err := h.within(func() error {
		var err error
		l, err = net.Listen("unix", holdName)
		if errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("%w (%s): stop it first", ErrHeld, holder())
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &hold{l: l}, nil
}

func (h *hold) release() error {
	if h == nil {
		return nil
	}
	return h.l.Close()
}

// holder names the process that listens at holdName, as far as this process can see it.
func holder() string {
	const unknown = "its process is not visible from here"
	conn, err := net.Dial("unix", holdName)
	if err != nil {
		return unknown
	}
	defer conn.Close()
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return unknown
	}
	var cred *unix.Ucred
	if err := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || cred == nil || cred.Pid == 0 {
		return unknown
	}
	return fmt.Sprintf("process %d", cred.Pid)
}
