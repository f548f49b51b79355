package dns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// BusyError says that an address cannot be listened on.
type BusyError struct {
	Address  netip.AddrPort
	Protocol string   // udp, tcp
	Holders  []string // processes that hold the port, if another does and they can be seen
	Err      error
}

func (e *BusyError) Error() string {
	msg := fmt.Sprintf("listen on %s %s: %v", e.Protocol, e.Address, rootCause(e.Err))
	switch {
	case errors.Is(e.Err, syscall.EADDRINUSE) && len(e.Holders) > 0:
		return msg + ": held by " + strings.Join(e.Holders, ", ")
	case errors.Is(e.Err, syscall.EADDRINUSE):
		return fmt.Sprintf("%s: its holder cannot be seen from here: on the node, run ss -lnp 'sport = :%d'", msg, e.Address.Port())
	case errors.Is(e.Err, syscall.EADDRNOTAVAIL):
		return msg + ": the address is on no link of this host (or its IPv6 duplicate check has not ended)"
	case errors.Is(e.Err, syscall.EACCES):
		return msg + ": a port below 1024 needs CAP_NET_BIND_SERVICE"
	}
	return msg
}

func (e *BusyError) Unwrap() error { return e.Err }

// rootCause strips what package net says about the address, which the message has already.
func rootCause(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// tryListen opens a socket for each address and protocol and closes them all again. caddy itself would name neither holder
// nor all busy addresses, and would leave the sockets open that it could bind before the one that failed.
func tryListen(ctx context.Context, cfg Config, addresses []netip.Addr) error {
	var open []io.Closer
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	var errs []error
	for _, a := range addresses {
		ap := netip.AddrPortFrom(a, cfg.Port)
		for _, protocol := range []string{"udp", "tcp"} {
			c, err := tryOne(ctx, protocol, ap, cfg.Join)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			open = append(open, c)
		}
	}
	return errors.Join(errs...)
}

// tryOne binds as CoreDNS does, with SO_REUSEPORT, only where that shares the port with nobody: with it, a second DNS
// server of the same user on the same address would go unnoticed and take half of the questions. join asks for just that.
// One on the wildcard takes none, since the kernel prefers the socket with the address.
func tryOne(ctx context.Context, protocol string, ap netip.AddrPort, join bool) (io.Closer, error) {
	c, err := bind(ctx, protocol, ap, join)
	if err == nil || join || !errors.Is(err, syscall.EADDRINUSE) {
		return c, asBusy(protocol, ap, standing{}, err)
	}
	found, procErr := socketsAt("/proc", protocol, ap)
	if procErr == nil && len(found.exact) == 0 && len(found.wildcard) > 0 {
		c, err = bind(ctx, protocol, ap, true)
	}
	return c, asBusy(protocol, ap, found, err)
}

func bind(ctx context.Context, protocol string, ap netip.AddrPort, share bool) (io.Closer, error) {
	var lc net.ListenConfig
	if share {
		lc.Control = reusePort
	}
	if protocol == "udp" {
		return lc.ListenPacket(ctx, protocol, ap.String())
	}
	return lc.Listen(ctx, protocol, ap.String())
}

func asBusy(protocol string, ap netip.AddrPort, found standing, err error) error {
	if err == nil {
		return nil
	}
	return &BusyError{Address: ap, Protocol: protocol, Err: err, Holders: holders("/proc", append(found.exact, found.wildcard...))}
}

func reusePort(_, _ string, c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}); cerr != nil {
		return cerr
	}
	return err
}
