package testutil

import (
	"crypto/rand"
	"net"
	"net/netip"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// VethPair joins two namespaces by a veth pair and sets both ends up. It makes the ends in these namespaces, never in the machine's.
func VethPair(t TB, a *NetNS, aName string, b *NetNS, bName string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = aName
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: bName, PeerNamespace: netlink.NsFd(b.FD())}
	if err := a.handle.LinkAdd(veth); err != nil {
		t.Fatalf("add veth %s in %s to %s in %s: %v", aName, a.name, bName, b.name, err)
	}
	for _, end := range []struct {
		ns   *NetNS
		name string
	}{{a, aName}, {b, bName}} {
		end.ns.NoDAD(end.name)
	}
	a.Up(aName)
	b.Up(bName)
}

// Bridge adds a bridge with the given ports and sets it up.
func (n *NetNS) Bridge(name string, ports ...string) {
	n.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	// Set the hardware address, as the bridge plugin does. Otherwise a bridge takes the lowest address of its ports, so a new port
	// may change it, and neighbours then have an old one. Set it when the bridge is made: if it is set later to the value that it
	// has already, Linux 5.10 makes no forwarding entry for it, and packets to the bridge go to all ports and not to the host.
	attrs.HardwareAddr = randomMAC()
	if err := n.handle.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		n.t.Fatalf("add bridge %s in %s: %v", name, n.name, err)
	}
	n.NoDAD(name)
	n.Up(name)
	for _, port := range ports {
		n.Port(name, port)
	}
}

// randomMAC returns a random hardware address.
func randomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac)     // never fails
	mac[0] = mac[0]&^0x03 | 2 // unicast, locally administered
	return mac
}

// Port makes a link a port of a bridge.
func (n *NetNS) Port(bridge, port string) {
	n.t.Helper()
	if err := n.handle.LinkSetMaster(n.Link(port), n.Link(bridge)); err != nil {
		n.t.Fatalf("make %s a port of %s in %s: %v", port, bridge, n.name, err)
	}
}

// NoDAD turns duplicate address detection and router solicitation off on one link, so that its IPv6 addresses are usable at
// once. Use it only for links that testutil makes, because neardns's own link must behave as on a real node.
func (n *NetNS) NoDAD(link string) {
	n.t.Helper()
	if !n.HasSysctl("net.ipv6") {
		return
	}
	for _, key := range []string{"accept_dad", "dad_transmits", "router_solicitations", "accept_ra"} {
		n.Sysctl("net.ipv6.conf."+slashDots(link)+"."+key, "0")
	}
}

func slashDots(link string) string {
	b := []byte(link)
	for i, c := range b {
		if c == '.' {
			b[i] = '/'
		}
	}
	return string(b)
}

// Link returns the link with this name. It fails and ends the test if there is none.
func (n *NetNS) Link(name string) netlink.Link {
	n.t.Helper()
	link, err := n.handle.LinkByName(name)
	if err != nil {
		n.t.Fatalf("find link %s in %s: %v", name, n.name, err)
	}
	return link
}

// Up brings a link up.
func (n *NetNS) Up(link string) {
	n.t.Helper()
	if err := n.handle.LinkSetUp(n.Link(link)); err != nil {
		n.t.Fatalf("bring %s up in %s: %v", link, n.name, err)
	}
}

// Down brings a link down.
func (n *NetNS) Down(link string) {
	n.t.Helper()
	if err := n.handle.LinkSetDown(n.Link(link)); err != nil {
		n.t.Fatalf("bring %s down in %s: %v", link, n.name, err)
	}
}

// DelLink deletes a link. It does nothing if there is no such link.
func (n *NetNS) DelLink(name string) {
	n.t.Helper()
	link, err := n.handle.LinkByName(name)
	if err != nil {
		return
	}
	if err := n.handle.LinkDel(link); err != nil {
		n.t.Fatalf("delete link %s in %s: %v", name, n.name, err)
	}
}

// SetMAC gives a link a hardware address.
func (n *NetNS) SetMAC(link, mac string) {
	n.t.Helper()
	address, err := net.ParseMAC(mac)
	if err == nil {
		err = n.handle.LinkSetHardwareAddr(n.Link(link), address)
	}
	if err != nil {
		n.t.Fatalf("set address of %s in %s to %s: %v", link, n.name, mac, err)
	}
}

// AddAddr adds an address with its prefix length to a link, for IPv6 without duplicate address detection.
func (n *NetNS) AddAddr(link string, prefix netip.Prefix) {
	n.t.Helper()
	if err := n.handle.AddrAdd(n.Link(link), netlinkAddr(prefix)); err != nil {
		n.t.Fatalf("add %s to %s in %s: %v", prefix, link, n.name, err)
	}
}

// DelAddr removes an address from a link.
func (n *NetNS) DelAddr(link string, prefix netip.Prefix) {
	n.t.Helper()
	if err := n.handle.AddrDel(n.Link(link), netlinkAddr(prefix)); err != nil {
		n.t.Fatalf("delete %s from %s in %s: %v", prefix, link, n.name, err)
	}
}

func netlinkAddr(prefix netip.Prefix) *netlink.Addr {
	addr := &netlink.Addr{IPNet: ipNet(prefix)}
	if prefix.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	return addr
}

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}

// Host returns the prefix that contains only a: /32 or /128.
func Host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// AddRoute adds a route to dst through the gateway via, on link. If via is invalid, the route has no gateway (scope link). If link
// is empty, the kernel chooses the link that leads to the gateway. AddRoute replaces an existing route to dst.
func (n *NetNS) AddRoute(dst netip.Prefix, via netip.Addr, link string) {
	n.t.Helper()
	route := &netlink.Route{Dst: ipNet(dst.Masked())}
	if link != "" {
		route.LinkIndex = n.Link(link).Attrs().Index
	}
	if via.IsValid() {
		route.Gw = via.AsSlice()
	} else {
		route.Scope = netlink.SCOPE_LINK
	}
	if err := n.handle.RouteReplace(route); err != nil {
		n.t.Fatalf("add route to %s via %s on %q in %s: %v", dst, via, link, n.name, err)
	}
}

// DelRoute deletes the route to dst on link.
func (n *NetNS) DelRoute(dst netip.Prefix, link string) {
	n.t.Helper()
	route := &netlink.Route{Dst: ipNet(dst.Masked()), LinkIndex: n.Link(link).Attrs().Index}
	if err := n.handle.RouteDel(route); err != nil {
		n.t.Fatalf("delete route to %s on %s in %s: %v", dst, link, n.name, err)
	}
}

// DefaultRoute returns the prefix of all addresses of via's IP family: 0.0.0.0/0 or ::/0.
func DefaultRoute(via netip.Addr) netip.Prefix {
	if via.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// ComputeChecksums makes a link compute every checksum before it sends, as a wire between two machines has it (ETHTOOL_STXCSUM of
// linux/ethtool.h). Otherwise the kernel never computes the checksum of a packet between two namespaces, so a test would not see a
// wrong one.
func (n *NetNS) ComputeChecksums(link string) {
	n.t.Helper()
	n.Do(func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		Must(n.t, err)
		defer unix.Close(fd)
		value := struct{ command, data uint32 }{0x17, 0}
		request := struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte // the rest of the kernel's union
		}{data: unsafe.Pointer(&value)}
		copy(request.name[:unix.IFNAMSIZ-1], link)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
			n.t.Fatalf("turn off checksum offload of %s: %v", link, errno)
		}
	})
}
