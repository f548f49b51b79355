package translate

import (
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inRoutes looks at where a packet for the address would leave by. Without a translation it goes the way of everything that
// nobody knows; a route of its own means that somebody wants to see it.
func inRoutes(a netip.Addr) (place, error) {
	routes, err := netlink.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES):
		return place{}, nil // no route, or one that refuses it
	case errors.Is(err, unix.EINVAL): // a blackhole
		return place{}, nil
	case err != nil:
		return place{}, fmt.Errorf("its route cannot be looked at: %w", err)
	case len(routes) == 0:
		return place{}, nil
	}
	r := routes[0]
	if r.Type == unix.RTN_LOCAL {
		return place{maybe: "it is an address of this host: what listens there may answer for kube-dns"}, nil
	}
	if r.Type != unix.RTN_UNICAST {
		return place{}, nil
	}
	link, err := netlink.LinkByIndex(r.LinkIndex)
	if err != nil {
		return place{}, fmt.Errorf("the link of its route cannot be looked at: %w", err)
	}
	by := link.Attrs().Name
	if isCilium() {
		// Its programs at the egress of a node's link masquerade and answer for NodePorts; ClusterIPs it translates at
		// sockets and where packets leave pods (cilium/cilium, bpf/bpf_host.c and bpf/bpf_lxc.c).
		return place{near: "Cilium is on this node (link cilium_host) and translates at sockets and at pods' links, before this host's netfilter"}, nil
	}
	if r.Dst != nil && !isDefault(r.Dst.Mask.Size()) {
		return place{maybe: fmt.Sprintf("it has a route of its own (%s, by %s): what is behind that link may translate it", r.Dst, by)}, nil
	}
	programs, err := egressPrograms(link)
	if err != nil {
		return place{}, fmt.Errorf("programs at the egress of %s cannot be looked at: %w", by, err)
	}
	if programs {
		return place{maybe: fmt.Sprintf("there are programs at the egress of %s, by which it leaves: they may translate it", by)}, nil
	}
	return place{}, nil
}

func isDefault(ones, _ int) bool { return ones == 0 }

func isCilium() bool {
	_, err := netlink.LinkByName("cilium_host")
	return err == nil
}

// egressPrograms tells whether a link has BPF programs that packets pass as they leave: of clsact's filters, or at tcx.
func egressPrograms(link netlink.Link) (bool, error) {
	qdiscs, err := netlinksafe.QdiscList(link)
	if err != nil {
		return false, err
	}
	for _, q := range qdiscs {
		if q.Type() != "clsact" {
			continue
		}
		filters, err := netlinksafe.FilterList(link, netlink.HANDLE_MIN_EGRESS)
		if err != nil {
			return false, err
		}
		for _, f := range filters {
			if f.Type() == "bpf" {
				return true, nil
			}
		}
	}
	return tcxPrograms(link.Attrs().Index)
}

// tcxPrograms asks for programs at tcx (Linux 6.6). Where that is not for this process (it takes the system call bpf, which
// engines keep from containers), there are none for it: a datapath that translates ClusterIPs there, and nowhere else, and for
// packets that have found their route, is not known to us.
func tcxPrograms(index int) (bool, error) {
	// union bpf_attr as BPF_PROG_QUERY reads it.
	var attr struct {
		ifindex, attachType, queryFlags, attachFlags uint32
		ids                                          uint64
		count, _                                     uint32
		_                                            [32]byte // the kernel writes a revision at its end
	}
	const progQuery, tcxEgress = 16, 47 // BPF_PROG_QUERY, BPF_TCX_EGRESS
	attr.ifindex, attr.attachType = uint32(index), tcxEgress
	_, _, errno := unix.Syscall(unix.SYS_BPF, progQuery, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr)) //nolint:gosec // the kernel's interface
	switch errno {
	case 0:
		return attr.count > 0, nil
	case unix.EPERM, unix.EINVAL, unix.ENOSYS, unix.ENOENT: // ENOENT: none was ever attached there
		return false, nil
	}
	return false, errno
}
