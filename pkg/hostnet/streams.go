package hostnet

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Stream is a TCP connection in a netns that may still carry data.
type Stream struct{ Local, Remote netip.AddrPort }

// Streams lists the TCP connections from a netns to a remote port, including those that are being opened. It omits connections in
// TIME_WAIT, because a pod that opens a connection for each query has thousands of them. IPv4-mapped addresses are returned as IPv4.
// It needs the kernel module tcp_diag, which the kernel loads on demand.
func Streams(nsFD int, port uint16) ([]Stream, error) {
	var out []Stream
	err := InNetNS(nsFD, func() error {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			sockets, err := netlink.SocketDiagTCP(family)
			if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // the entries of an interrupted dump are right, even if some are missing
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

// ForgetAnswersOf removes a netns's conntrack entries whose answers come from an address. An interrupted dump may leave some. It needs the
// kernel module nf_conntrack_netlink, which the kernel loads on demand.
func ForgetAnswersOf(nsFD int, addr netip.Addr) error {
	return InNetNS(nsFD, func() error {
		var from netlink.ConntrackFilter
		_ = from.AddIP(netlink.ConntrackReplySrcIP, addr.AsSlice()) // the first is always taken
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.InetFamily(Family(addr)), &from); err != nil {
			return fmt.Errorf("remove conntrack entries of %s: %w", addr, err)
		}
		return nil
	})
}
