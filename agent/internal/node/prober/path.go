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

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// ownInterface is the name of the veth's end in the prober's netns.
const ownInterface = "eth0"

// The hardware addresses of the veth's two ends. If the ends are in two netns, each has a permanent neighbour entry for the other, so that
// neither needs ARP, neighbour discovery or an address in the other's subnet. Because the addresses are set explicitly, udev does not
// generate others.
func hostMAC() net.HardwareAddr { return net.HardwareAddr{0x02, 'n', 'd', 'n', 's', 0x01} }
func ownMAC() net.HardwareAddr  { return net.HardwareAddr{0x02, 'n', 'd', 'n', 's', 0x02} }

// family is an address family's constants.
type family struct {
	is4     bool
	af      int
	gateway netip.Addr // the prober's next hop: no interface has it; a permanent neighbour entry leads to the host's end
}

func ipv4() family {
	return family{is4: true, af: unix.AF_INET, gateway: netip.MustParseAddr("169.254.1.1")}
}

func ipv6() family { return family{af: unix.AF_INET6, gateway: netip.MustParseAddr("fe80::1")} }

func (f family) sources() []netip.Addr {
	return []netip.Addr{steer.ProbeSource(f.is4), steer.FallbackCheckSource(f.is4)}
}

func (f family) defaultRoute() *net.IPNet {
	return &net.IPNet{IP: make(net.IP, f.gateway.BitLen()/8), Mask: net.CIDRMask(0, f.gateway.BitLen())}
}

// host is the host's end of the veth.
type host struct{ hostnet.Handle }

func openHost(nsFD int) (host, error) {
	h, err := hostnet.OpenHandle(nsFD)
	return host{h}, err
}

// removeStale removes a dead predecessor's veth, so that its name is free. It keeps the veth whose peer is this prober's link called name
// in nl's netns, and then returns there = true. Any other veth of that name belongs to a dead process, because this process has the
// prober's lock. A link of another kind belongs to another program: it stays, and removeStale returns an error.
func (h host) removeStale(nl hostnet.Handle, name string) (there bool, err error) {
	l, err := h.LinkByName(steer.ProberInterface)
	switch {
	case hostnet.IsNoLink(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look up interface %s: %w", steer.ProberInterface, err)
	case l.Type() != "veth":
		return false, fmt.Errorf("interface %s is a %s of another program: remove or rename it", steer.ProberInterface, l.Type())
	case arePeers(l, nl, name):
		return true, nil
	}
	if err := h.LinkDel(l); err != nil && !hostnet.IsNoLink(err) {
		return false, fmt.Errorf("remove the dead predecessor's interface %s: %w", steer.ProberInterface, err)
	}
	return false, nil
}

// ensureLink creates the veth if it is missing, and reports whether it did.
func (h host) ensureLink(own inside) (made bool, err error) {
	if there, err := h.removeStale(own.nl, ownInterface); there || err != nil {
		return false, err
	}
	err = h.AddVeth(steer.ProberInterface, hostMAC(), ownInterface, ownMAC(), int(own.ns.Fd()))
	return err == nil, err
}

// ensureSources creates or repairs a veth pair with both ends in the host's netns and the prober's addresses on it, for a prober that may
// not create a netns. made reports whether it created the pair.
func (h host) ensureSources(families []family) (made bool, err error) {
	there, err := h.removeStale(h.Handle, steer.SourcesInterface)
	if err == nil && !there {
		err = h.AddVeth(steer.ProberInterface, hostMAC(), steer.SourcesInterface, ownMAC(), 0)
		made = err == nil
	}
	if err != nil {
		return made, err
	}
	if _, err := ensureEnd(h.Handle, steer.ProberInterface, hostMAC(), families); err != nil {
		return made, fmt.Errorf("interface %s: %w", steer.ProberInterface, err)
	}
	e, err := ensureEnd(h.Handle, steer.SourcesInterface, ownMAC(), families)
	if err != nil {
		return made, fmt.Errorf("interface %s: %w", steer.SourcesInterface, err)
	}
	if err := e.addresses(families); err != nil {
		return made, err
	}
	return made, awaitSettled(func() error {
		return errors.Join(checkUp(h.Handle, steer.SourcesInterface), checkUp(h.Handle, steer.ProberInterface), checkLocal(h.Handle, families))
	})
}

// ensure sets up the host's end of the veth: its properties, and routes and neighbour entries for the prober's source addresses.
func (h host) ensure(families []family) error {
	e, err := ensureEnd(h.Handle, steer.ProberInterface, hostMAC(), families)
	if err != nil {
		return err
	}
	for _, f := range families {
		for _, source := range f.sources() {
			if err := errors.Join(e.route(f, hostnet.HostNet(source), netip.Addr{}), e.neighbour(f, source, ownMAC())); err != nil {
				return err
			}
		}
	}
	return nil
}

// inside manages what the prober has in its own netns: one end of the veth, and the prober's pod table.
type inside struct {
	ns    *os.File
	nl    hostnet.Handle
	table rules.Rules
}

// openInside makes the prober's netns. If it returns an error, close what it returns.
func openInside(kind rules.Kind) (i inside, err error) {
	if i.ns, err = newNetNS(); err != nil {
		return i, err
	}
	if i.nl, err = hostnet.OpenHandle(int(i.ns.Fd())); err != nil {
		return i, err
	}
	i.table, err = kind.Open(int(i.ns.Fd()))
	return i, err
}

func (i inside) close() (err error) {
	if i.ns == nil {
		return nil
	}
	if i.table != nil {
		err = i.table.Close()
	}
	i.nl.Close()
	return errors.Join(err, i.ns.Close())
}

// arePeers reports whether the veth l is the peer of the link called name. Interface indexes are not unique across namespaces, so each
// end must have the other's index as its peer, and the link called name must have the hardware address that the prober sets.
func arePeers(l netlink.Link, nl hostnet.Handle, name string) bool {
	own, err := nl.LinkByName(name)
	return err == nil && own.Attrs().ParentIndex == l.Attrs().Index && l.Attrs().ParentIndex == own.Attrs().Index &&
		bytes.Equal(own.Attrs().HardwareAddr, ownMAC())
}

// ensure sets up the prober's end of the veth: its properties, its addresses, and a default route with the neighbour entry of its gateway.
func (i inside) ensure(families []family) error {
	e, err := ensureEnd(i.nl, ownInterface, ownMAC(), families)
	if err != nil {
		return err
	}
	if err := e.addresses(families); err != nil {
		return err
	}
	for _, f := range families {
		if err := errors.Join(e.route(f, f.defaultRoute(), f.gateway), e.neighbour(f, f.gateway, hostMAC())); err != nil {
			return err
		}
	}
	return nil
}

// end is one end of the veth.
type end struct {
	*hostnet.End
	nl hostnet.Handle
}

// ensureEnd repairs the properties of one end of the veth. Multicast is off, and with IPv6 the generation of addresses too, because the
// link carries only the prober's queries and their answers. If the node disables IPv6 on new links, the CNI enables it for pods, and this
// function for the prober.
func ensureEnd(h hostnet.Handle, name string, mac net.HardwareAddr, families []family) (end, error) {
	e, err := h.End(name)
	if err != nil {
		return end{}, err
	}
	e.MAC(mac)
	e.NoMulticast()
	if slices.ContainsFunc(families, func(f family) bool { return !f.is4 }) {
		e.IPv6()
	}
	e.Up()
	_, err = e.Done()
	return end{e, h}, err
}

// addresses gives this end the prober's source addresses.
func (e end) addresses(families []family) error {
	for _, f := range families {
		for _, source := range f.sources() {
			e.Address(hostnet.NonSourceAddr(source))
		}
	}
	_, err := e.Done()
	return err
}

// errUnsettled means that the kernel has not set up the prober's ends yet.
var errUnsettled = errors.New("the kernel has not set up the prober's interfaces yet")

// awaitSettled waits, for 1.5 s at most, until the kernel has set up both ends, which usually takes a millisecond. Before that, the ends
// have no transmit queue and drop packets, and IPv6 addresses have no local route, so answers do not arrive.
func awaitSettled(look func() error) error {
	const atMost, pause = 1500 * time.Millisecond, 2 * time.Millisecond
	for deadline := time.Now().Add(atMost); ; <-time.After(pause) {
		if err := look(); err == nil {
			return nil
		} else if time.Now().After(deadline) {
			return fmt.Errorf("%w: %w", errUnsettled, err)
		}
	}
}

func checkUp(nl hostnet.Handle, name string) error {
	l, err := nl.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look up %s: %w", name, err)
	}
	if state := l.Attrs().OperState; state != netlink.OperUp {
		return fmt.Errorf("%s is up, but its state is %s", name, state)
	}
	return nil
}

// checkLocal returns an error if the kernel does not yet treat the prober's addresses as local in their netns.
func checkLocal(nl hostnet.Handle, families []family) error {
	for _, f := range families {
		for _, source := range f.sources() {
			routes, err := nl.RouteGet(source.AsSlice())
			if err != nil {
				return fmt.Errorf("look up the route to %s: %w", source, err)
			}
			if len(routes) == 0 || routes[0].Type != unix.RTN_LOCAL {
				return fmt.Errorf("%s is not yet a local address", source)
			}
		}
	}
	return nil
}

// route ensures a route to dst through this link: via gateway, or directly if gateway is the zero Addr.
func (e end) route(f family, dst *net.IPNet, gateway netip.Addr) error {
	want := &netlink.Route{LinkIndex: e.Link.Attrs().Index, Dst: dst, Protocol: unix.RTPROT_STATIC, Scope: netlink.SCOPE_LINK}
	if gateway.IsValid() {
		want.Gw, want.Scope, want.Flags = gateway.AsSlice(), netlink.SCOPE_UNIVERSE, int(netlink.FLAG_ONLINK)
	}
	if !f.is4 {
		want.Scope = netlink.SCOPE_UNIVERSE // IPv6 routes have no scope
	}
	have, err := e.nl.RouteList(e.Link, f.af)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, h := range have {
		if h.Dst != nil && h.Dst.String() == dst.String() && h.Gw.Equal(want.Gw) {
			return nil
		}
	}
	if err := e.nl.RouteReplace(want); err != nil {
		return fmt.Errorf("add route to %s: %w", dst, err)
	}
	return nil
}

// neighbour sets a permanent neighbour entry. If the entry is there already, the kernel changes and reports nothing.
func (e end) neighbour(f family, a netip.Addr, mac net.HardwareAddr) error {
	err := e.nl.NeighSet(&netlink.Neigh{LinkIndex: e.Link.Attrs().Index, Family: f.af, State: unix.NUD_PERMANENT,
		IP: a.AsSlice(), HardwareAddr: mac})
	if err != nil {
		return fmt.Errorf("set neighbour %s: %w", a, err)
	}
	return nil
}
