package hostnet

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Stream is one TCP connection of a netns that may send yet.
type Stream struct{ Local, Remote netip.AddrPort }

// Streams lists the TCP connections of a netns to a port, also those that are being opened. Those that only wait for stray packets
// (TIME_WAIT, a minute) are none: a pod that opens one for each question has thousands. IPv4 addresses are plain, whatever family
// their socket is of. It needs the kernel's socket diagnosis (tcp_diag), which kernels load by themselves.
func Streams(nsFD int, port uint16) ([]Stream, error) {
	var out []Stream
	err := InNetNS(nsFD, func() error {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			sockets, err := netlink.SocketDiagTCP(family)
			if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // what is listed then is true
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
