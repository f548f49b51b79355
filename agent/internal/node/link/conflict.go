package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// zeroconf is the on-link route that many distributions put on the first interface (RFC 3927). Its addresses are picked at random and
// defended by ARP, so no service uses them, and the route does not count as "routed elsewhere".
var zeroconf = netip.MustParsePrefix("169.254.0.0/16")

// conflict returns a *ConflictError if another link has addr, or if a route more specific than the default leads to it. The route is
// checked only while the address is missing, because the kernel has a local route once it is added.
func (k kernel) conflict(own netlink.Link, addr netip.Addr, present bool, all []netlink.Addr) error {
	for _, a := range all {
		if a.LinkIndex == own.Attrs().Index || prefixOf(a).Addr() != addr {
			continue
		}
		name := fmt.Sprintf("number %d", a.LinkIndex)
		if other, err := k.LinkByIndex(a.LinkIndex); err == nil {
			name = other.Attrs().Name
		}
		return &ConflictError{Address: addr, Link: name}
	}
	if present {
		return nil
	}
	routes, err := k.RouteGetWithOptions(addr.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil {
		return ignoreNoRoute(addr, err)
	}
	for _, r := range routes {
		if !leadsElsewhere(own, r) {
			continue
		}
		return &ConflictError{Address: addr, Route: k.describe(r)}
	}
	return nil
}

// ignoreNoRoute drops the errors by which the kernel reports that there is no route, or one that refuses packets (unreachable, prohibit,
// blackhole; a whole private range is often closed that way).
func ignoreNoRoute(addr netip.Addr, err error) error {
	for _, none := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.EAGAIN, unix.ESRCH, unix.ENOENT} {
		if errors.Is(err, none) {
			return nil
		}
	}
	return fmt.Errorf("look up the route to %s: %w", addr, err)
}

func leadsElsewhere(own netlink.Link, r netlink.Route) bool {
	dst := routePrefix(r)
	switch {
	case dst.Bits() == 0, r.LinkIndex == own.Attrs().Index:
		return false
	case dst == zeroconf && r.Gw == nil && r.Type == unix.RTN_UNICAST:
		return false
	case r.Type == unix.RTN_UNREACHABLE, r.Type == unix.RTN_PROHIBIT, r.Type == unix.RTN_BLACKHOLE, r.Type == unix.RTN_THROW:
		return false
	}
	return true
}

// routePrefix is the route's destination; the library gives none for a default route.
func routePrefix(r netlink.Route) netip.Prefix {
	if r.Dst == nil {
		return netip.Prefix{}
	}
	addr, ok := netip.AddrFromSlice(r.Dst.IP)
	ones, _ := r.Dst.Mask.Size()
	if !ok {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(addr.Unmap(), ones)
}

// describe prints a route as ip(8) does, with the parts that identify it.
func (k kernel) describe(r netlink.Route) string {
	text := routePrefix(r).String()
	if r.Type == unix.RTN_LOCAL {
		text = "local " + text
	}
	if r.Gw != nil && !r.Gw.Equal(net.IPv4zero) {
		text += " via " + r.Gw.String()
	}
	if l, err := k.LinkByIndex(r.LinkIndex); err == nil {
		text += " dev " + l.Attrs().Name
	}
	if r.Table != 0 && r.Table != unix.RT_TABLE_MAIN {
		text += fmt.Sprintf(" table %d", r.Table)
	}
	return text
}
