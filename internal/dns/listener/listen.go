package listener

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/internal/dns/procnet"
)

// BusyError is the error for an address on which the server cannot listen.
type BusyError struct {
	Address  netip.AddrPort
	Protocol string // udp, tcp
	Err      error
}

func (e *BusyError) Error() string {
	msg := fmt.Sprintf("listen on %s %s: %v", e.Protocol, e.Address, rootCause(e.Err))
	switch {
	case errors.Is(e.Err, syscall.EADDRINUSE):
		return fmt.Sprintf("%s: on the node, ss -lnp 'sport = :%d' shows the process that has it", msg, e.Address.Port())
	case errors.Is(e.Err, syscall.EADDRNOTAVAIL):
		return msg + ": the address is on no link of this host (or its IPv6 duplicate check has not ended)"
	case errors.Is(e.Err, syscall.EACCES):
		return msg + ": a port below 1024 needs CAP_NET_BIND_SERVICE"
	}
	return msg
}

func (e *BusyError) Unwrap() error { return e.Err }

// rootCause returns the errno, without the address that package net adds: the message has the address already.
func rootCause(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}

// Socket is one listening socket; its JSON is in the messages of a handover. Its File is a descriptor that the owner of the Socket must
// close.
type Socket struct {
	Protocol string         `json:"protocol"` // udp, tcp
	Address  netip.AddrPort `json:"address"`
	File     *os.File       `json:"-"`
}

// listen makes a point, which is a listening socket with what serves it, for each address and protocol. It uses an inherited socket if
// there is one. It makes all points or none, and returns the errors of all that failed.
func (s *Server) listen(ctx context.Context, cfg Config, addresses []netip.Addr, inherited []Socket) ([]*point, error) {
	var points []*point
	var errs []error
	for _, a := range addresses {
		at := netip.AddrPortFrom(a, cfg.Port)
		for _, protocol := range []string{"udp", "tcp"} {
			p, err := s.listenAt(ctx, protocol, at, cfg.Transparent, inherited)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			points = append(points, p)
		}
	}
	if len(errs) > 0 {
		for _, p := range points {
			_ = p.socket.Close() // never read
		}
		return nil, errors.Join(errs...)
	}
	return points, nil
}

func (s *Server) listenAt(ctx context.Context, protocol string, at netip.AddrPort, transparent bool, inherited []Socket) (*point, error) {
	for _, i := range inherited {
		if i.Protocol != protocol || i.Address != at {
			continue
		}
		p, err := s.newPoint(protocol, at, i.File)
		if err != nil {
			return nil, fmt.Errorf("take over %s %s: %w", protocol, at, err)
		}
		return p, nil
	}
	f, err := open(ctx, protocol, at, transparent)
	if err != nil {
		return nil, &BusyError{Address: at, Protocol: protocol, Err: err}
	}
	defer f.Close()
	return s.newPoint(protocol, at, f)
}

// open makes a listening socket. It uses SO_REUSEPORT only to listen next to a socket on the wildcard address, which then gets no queries
// for this address. It does not use it if another socket has the same address: the kernel would give the other program half of the
// queries, and the mistake would go unnoticed.
func open(ctx context.Context, protocol string, at netip.AddrPort, transparent bool) (*os.File, error) {
	f, err := bind(ctx, protocol, at, options{transparent: transparent})
	if !errors.Is(err, syscall.EADDRINUSE) {
		return f, err
	}
	if exact, wildcard, procErr := procnet.Bound(protocol, at); procErr != nil || exact || !wildcard {
		return nil, err
	}
	return bind(ctx, protocol, at, options{transparent: transparent, share: true})
}

// options are socket options that are set before the socket is bound.
type options struct{ share, transparent bool }

func bind(ctx context.Context, protocol string, ap netip.AddrPort, o options) (*os.File, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) { err = o.set(int(fd), ap.Addr().Is4()) }); cerr != nil {
			return cerr
		}
		return err
	}}
	var s socket
	if protocol == "udp" {
		pc, err := lc.ListenPacket(ctx, protocol, ap.String())
		if err != nil {
			return nil, err
		}
		s = pc.(*net.UDPConn)
	} else {
		l, err := lc.Listen(ctx, protocol, ap.String())
		if err != nil {
			return nil, err
		}
		s = l.(*net.TCPListener)
	}
	defer s.Close()
	return s.File()
}

func (o options) set(fd int, is4 bool) error {
	if o.share {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			return err
		}
	}
	switch {
	case !o.transparent:
		return nil
	case is4:
		return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
	}
	return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
}
