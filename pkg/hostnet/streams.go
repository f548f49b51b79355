package hostnet

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Stream is a TCP connection of a netns over which data may still be sent.
type Stream struct{ Local, Remote netip.AddrPort }

// Streams lists the TCP connections of a netns to a port, including those that are being opened. It leaves out connections in TIME_WAIT:
// a pod that opens one for each query has thousands. IPv4 addresses are unmapped, even if the socket is an IPv6 one. It needs the
// kernel's socket diagnosis module (tcp_diag), which the kernel loads on demand.
func Streams(nsFD int, port uint16) ([]Stream, error) {
	var out []Stream
	err := InNetNS(nsFD, func() error {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			sockets, err := netlink.SocketDiagTCP(family)
			if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // entries of an interrupted dump are still valid
				return fmt.Errorf("list connections: %w", err)
			}
			for _, s := range sockets {
				local, _ := netip.AddrFromSlice(s.ID.Source)
				remote, ok := netip.AddrFromSlice(s.ID.Destination)
				if ok && s.ID.DestinationPort == port && s.State != netlink.TCP_TIME_WAIT && s.State != netlink.TCP_CLOSE {
					out = append(out, Stream{netip.AddrPortFrom(local.Unmap(), s.ID.SourcePort), netip.AddrPortFrom(remote.Unmap(), port)})
				}
			}
		}
		return nil
	})
	return out, err
}
