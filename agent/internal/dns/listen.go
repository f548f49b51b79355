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
//
// It binds without SO_REUSEPORT, which CoreDNS sets: with it, a second DNS server of the same user would go unnoticed and
// take half of the questions. cfg.Join asks for just that.
func tryListen(ctx context.Context, cfg Config, addresses []netip.Addr) error {
	lc := net.ListenConfig{}
	if cfg.Join {
		lc.Control = reusePort
	}
	var open []io.Closer
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	var errs []error
	for _, a := range addresses {
		ap := netip.AddrPortFrom(a, cfg.Port)
		pc, err := lc.ListenPacket(ctx, "udp", ap.String())
		if err != nil {
			errs = append(errs, busy(ap, "udp", err))
		} else {
			open = append(open, pc)
		}
		ln, err := lc.Listen(ctx, "tcp", ap.String())
		if err != nil {
			errs = append(errs, busy(ap, "tcp", err))
		} else {
			open = append(open, ln)
		}
	}
	return errors.Join(errs...)
}

func busy(ap netip.AddrPort, protocol string, err error) *BusyError {
	e := &BusyError{Address: ap, Protocol: protocol, Err: err}
	if errors.Is(err, syscall.EADDRINUSE) {
		e.Holders = holders("/proc", protocol, ap)
	}
	return e
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
