package prober

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// ownInterface is the veth's end in the prober's netns.
const ownInterface = "eth0"

// The veth's two hardware addresses. Both ends know each other by permanent neighbour entries, so that neither needs an
// address of the other's kind, ARP or neighbour discovery. Given addresses also keep udev from making up others.
func hostMAC() net.HardwareAddr { return net.HardwareAddr{0x02, 'n', 'd', 'n', 's', 0x01} }
func ownMAC() net.HardwareAddr  { return net.HardwareAddr{0x02, 'n', 'd', 'n', 's', 0x02} }

// family is what the two families differ in.
type family struct {
	is4     bool
	af      int
	gateway netip.Addr // the prober's next hop: a name for the host's end, which is an address nowhere
}

func ipv4() family {
	return family{is4: true, af: unix.AF_INET, gateway: netip.MustParseAddr("169.254.1.1")}
}

func ipv6() family { return family{af: unix.AF_INET6, gateway: netip.MustParseAddr("fe80::1")} }

func (f family) sources() []netip.Addr {
	return []netip.Addr{steer.ProbeSource(f.is4), steer.ProofSource(f.is4)}
}

func (f family) everywhere() netip.Prefix {
	if f.is4 {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// host is the host's side: its netns and the veth's end there.
type host struct {
	nl netlinksafe.Handle
	ns ns.NetNS // nil: the process's own
}

func openHost(fd int) (host, error) {
	var h host
	at := netns.None()
	if fd > 0 {
		var err error
		if h.ns, err = ns.GetNS(fmt.Sprintf("/proc/self/fd/%d", fd)); err != nil {
			return host{}, fmt.Errorf("open the host's netns: %w", err)
		}
		at = netns.NsHandle(fd)
	}
	nl, err := netlinksafe.NewHandleAt(at, unix.NETLINK_ROUTE)
	if err != nil {
		return host{}, errors.Join(fmt.Errorf("open netlink socket: %w", err), h.close())
	}
	h.nl = nl
	return h, nil
}

func (h host) close() error {
	if h.nl.Handle != nil {
		h.nl.Close()
	}
	if h.ns != nil {
		return h.ns.Close()
	}
	return nil
}

// within runs f on a thread in the host's netns.
func (h host) within(f func() error) error {
	if h.ns == nil {
		return f()
	}
	return h.ns.Do(func(ns.NetNS) error { return f() })
}

// vacate makes room for the veth, unless it is there: one of its name that does not lead to us is a dead predecessor's (we hold
// the place), so it goes; any other kind of link is somebody's and stays.
func (h host) vacate(leadsToUs func(netlink.Link) bool) (there bool, err error) {
	l, err := h.nl.LinkByName(steer.ProberInterface)
	switch {
	case isNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look up interface %s: %w", steer.ProberInterface, err)
	case l.Type() != "veth":
		return false, fmt.Errorf("interface %s is a %s of another program: remove or rename it", steer.ProberInterface, l.Type())
	case leadsToUs(l):
		return true, nil
	}
	if err := h.nl.LinkDel(l); err != nil && !isNotFound(err) {
		return false, fmt.Errorf("remove the dead predecessor's interface %s: %w", steer.ProberInterface, err)
	}
	return false, nil
}

// ensureLink makes the veth where it is missing.
func (h host) ensureLink(own inside) (made bool, err error) {
	if there, err := h.vacate(own.leadsTo); there || err != nil {
		return false, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = steer.ProberInterface, hostMAC()
	err = h.nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: ownInterface, PeerHardwareAddr: ownMAC(), PeerNamespace: netlink.NsFd(own.room.fd())})
	if err != nil {
		return false, fmt.Errorf("add interface %s: %w", steer.ProberInterface, err)
	}
	return true, nil
}

func (h host) deleteLink() error {
	l, err := h.nl.LinkByName(steer.ProberInterface)
	if err == nil && l.Type() == "veth" {
		err = h.nl.LinkDel(l)
	}
	if err != nil && !isNotFound(err) {
		return fmt.Errorf("remove interface %s: %w", steer.ProberInterface, err)
	}
	return nil
}

// ensure gives the host's end its properties, and routes and neighbour entries for the prober's sources.
func (h host) ensure(families []family) error {
	e := end{nl: h.nl, within: h.within, name: steer.ProberInterface, mac: hostMAC()}
	if err := e.ensure(families); err != nil {
		return err
	}
	for _, f := range families {
		for _, source := range f.sources() {
			if err := errors.Join(e.route(f, hostPrefix(source), netip.Addr{}), e.neighbour(f, source, ownMAC())); err != nil {
				return err
			}
		}
	}
	return nil
}

// inside is the prober's side: its netns, the veth's end and the pod table.
type inside struct {
	room  *room
	nl    netlinksafe.Handle
	table rules.Rules
}

func openInside(r *room, kind rules.Kind) (inside, error) {
	nl, err := netlinksafe.NewHandleAt(netns.NsHandle(r.fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return inside{}, fmt.Errorf("open netlink socket: %w", err)
	}
	table, err := kind.Open(r.fd())
	if err != nil {
		nl.Close()
		return inside{}, err
	}
	return inside{room: r, nl: nl, table: table}, nil
}

func (i inside) close() error {
	if i.table == nil {
		return nil
	}
	i.nl.Close()
	return i.table.Close()
}

// leadsTo reports whether l, a veth in the host's netns, is the other end of ours. Indexes repeat across namespaces, so
// both must name each other and the addresses must be those that we gave.
func (i inside) leadsTo(l netlink.Link) bool {
	own, err := i.nl.LinkByName(ownInterface)
	return err == nil && own.Attrs().ParentIndex == l.Attrs().Index && l.Attrs().ParentIndex == own.Attrs().Index &&
		bytes.Equal(own.Attrs().HardwareAddr, ownMAC())
}

// ensure gives the prober its addresses and its only way out.
func (i inside) ensure(families []family) error {
	e := end{nl: i.nl, within: func(f func() error) (err error) { i.room.do(func() { err = f() }); return err }, name: ownInterface, mac: ownMAC()}
	if err := e.ensure(families); err != nil {
		return err
	}
	for _, f := range families {
		for _, source := range f.sources() {
			if err := e.address(f, source); err != nil {
				return err
			}
		}
		if err := errors.Join(e.route(f, f.everywhere(), f.gateway), e.neighbour(f, f.gateway, hostMAC())); err != nil {
			return err
		}
	}
	return nil
}

// end is one end of the veth.
type end struct {
	nl     netlinksafe.Handle
	within func(func() error) error
	name   string
	mac    net.HardwareAddr
	link   netlink.Link
}

// ensure sets the link itself right. Multicast and generated addresses are off: the link carries our questions and their
// answers, nothing else.
func (e *end) ensure(families []family) error {
	var err error
	if e.link, err = e.nl.LinkByName(e.name); err != nil {
		return fmt.Errorf("look it up: %w", err)
	}
	attrs := e.link.Attrs()
	if !bytes.Equal(attrs.HardwareAddr, e.mac) {
		if err := e.nl.LinkSetHardwareAddr(e.link, e.mac); err != nil {
			return fmt.Errorf("set its hardware address: %w", err)
		}
	}
	if attrs.Flags&net.FlagMulticast != 0 {
		if err := e.nl.LinkSetMulticastOff(e.link); err != nil {
			return fmt.Errorf("set multicast off: %w", err)
		}
	}
	if slices.ContainsFunc(families, func(f family) bool { return !f.is4 }) {
		if err := e.within(e.allowIPv6); err != nil {
			return err
		}
	}
	if attrs.Flags&net.FlagUp == 0 {
		if err := e.nl.LinkSetUp(e.link); err != nil {
			return fmt.Errorf("set it up: %w", err)
		}
	}
	return nil
}

// allowIPv6 runs in the end's netns. Where new links start with IPv6 off, pods' ones are turned on by the CNI, and ours here.
func (e *end) allowIPv6() error {
	conf := "/proc/sys/net/ipv6/conf/" + e.name + "/"
	if off, err := os.ReadFile(conf + "disable_ipv6"); err != nil {
		return fmt.Errorf("look whether IPv6 is on: %w", err)
	} else if bytes.HasPrefix(off, []byte("1")) {
		if err := os.WriteFile(conf+"disable_ipv6", []byte("0"), 0); err != nil {
			return fmt.Errorf("turn IPv6 on (is /proc/sys mounted read-only?): %w", err)
		}
	}
	const none = 1 // IN6_ADDR_GEN_MODE_NONE
	if mode, err := os.ReadFile(conf + "addr_gen_mode"); err == nil && bytes.HasPrefix(mode, []byte("1")) {
		return nil
	}
	if err := e.nl.LinkSetIP6AddrGenMode(e.link, none); err != nil {
		return fmt.Errorf("set addrgenmode none: %w", err)
	}
	return nil
}

// settle waits for what the kernel does in the background once both ends are up, as a rule within a millisecond and at
// worst a second later: it gives each end its queue, without which packets are dropped, and IPv6 addresses their routes,
// without which the answers to them are no answers.
func (i inside) settle(h host, families []family) error {
	return settled(func() error {
		return errors.Join(operational(i.nl, ownInterface), operational(h.nl, steer.ProberInterface), i.local(families))
	})
}

func settled(look func() error) error {
	const atMost, pause = 1500 * time.Millisecond, 2 * time.Millisecond
	for deadline := time.Now().Add(atMost); ; <-time.After(pause) {
		if err := look(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func operational(nl netlinksafe.Handle, name string) error {
	l, err := nl.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look up %s: %w", name, err)
	}
	if state := l.Attrs().OperState; state != netlink.OperUp {
		return fmt.Errorf("%s is set up and yet %s", name, state)
	}
	return nil
}

// local reports whether what is sent to the prober's addresses is its own.
func (i inside) local(families []family) error {
	for _, f := range families {
		for _, source := range f.sources() {
			routes, err := i.nl.RouteGet(source.AsSlice())
			if err != nil {
				return fmt.Errorf("look up the route to %s: %w", source, err)
			}
			if len(routes) == 0 || routes[0].Type != unix.RTN_LOCAL {
				return fmt.Errorf("%s is not yet local in the prober's netns", source)
			}
		}
	}
	return nil
}

func (e *end) address(f family, a netip.Addr) error {
	// A list that changes kept interrupting only saves nothing: what is there already is no error below.
	have, err := e.nl.AddrList(e.link, f.af)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list addresses: %w", err)
	}
	if slices.ContainsFunc(have, func(h netlink.Addr) bool { return h.IP.Equal(a.AsSlice()) }) {
		return nil
	}
	addr := &netlink.Addr{IPNet: ipNet(hostPrefix(a))}
	if !f.is4 {
		// Nobody else is on the link, and a tentative address cannot be bound.
		addr.Flags = unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE
	}
	if err := e.nl.AddrAdd(e.link, addr); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add address %s: %w", a, err)
	}
	return nil
}

// route ensures a route to dst by this link, over a gateway where one is given.
func (e *end) route(f family, dst netip.Prefix, gateway netip.Addr) error {
	want := &netlink.Route{LinkIndex: e.link.Attrs().Index, Dst: ipNet(dst), Protocol: unix.RTPROT_STATIC, Scope: netlink.SCOPE_LINK}
	if gateway.IsValid() {
		want.Gw, want.Scope, want.Flags = gateway.AsSlice(), netlink.SCOPE_UNIVERSE, int(netlink.FLAG_ONLINK)
	}
	if !f.is4 {
		want.Scope = netlink.SCOPE_UNIVERSE // IPv6 routes have none
	}
	have, err := e.nl.RouteList(e.link, f.af)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, h := range have {
		if h.Dst != nil && h.Dst.String() == want.Dst.String() && h.Gw.Equal(want.Gw) {
			return nil
		}
	}
	if err := e.nl.RouteReplace(want); err != nil {
		return fmt.Errorf("add route to %s: %w", dst, err)
	}
	return nil
}

func (e *end) neighbour(f family, a netip.Addr, mac net.HardwareAddr) error {
	have, err := e.nl.NeighList(e.link.Attrs().Index, f.af)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list neighbours: %w", err)
	}
	for _, h := range have {
		if h.IP.Equal(a.AsSlice()) && h.State == unix.NUD_PERMANENT && bytes.Equal(h.HardwareAddr, mac) {
			return nil
		}
	}
	err = e.nl.NeighSet(&netlink.Neigh{LinkIndex: e.link.Attrs().Index, Family: f.af, State: unix.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac})
	if err != nil {
		return fmt.Errorf("set neighbour %s: %w", a, err)
	}
	return nil
}

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func isNotFound(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound) || errors.Is(err, unix.ENODEV)
}
