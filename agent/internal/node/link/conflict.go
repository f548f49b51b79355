package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// zeroconf is the on-link route that many distributions put on the first interface (RFC 3927). Hosts pick their addresses in it at random
// and check them by ARP, so the route does not show that a host has a certain address, and does not count as a conflict.
var zeroconf = netip.MustParsePrefix("169.254.0.0/16")

// conflict returns a *ConflictError if another link has addr, or if a route leads to it elsewhere (see leadsElsewhere). It checks the route
// only if addr is not on the link yet, because the kernel adds a local route together with the address.
func (k kernel) conflict(own netlink.Link, addr netip.Addr, present bool, all []netlink.Addr) error {
	for _, a := range all {
		if a.LinkIndex == own.Attrs().Index || prefixOf(a.IPNet).Addr() != addr {
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

// ignoreNoRoute returns nil for the errors by which the kernel reports that there is no route, or one that rejects packets (unreachable,
// prohibit, blackhole; operators often close a whole private range that way). It wraps any other error.
func ignoreNoRoute(addr netip.Addr, err error) error {
	for _, none := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.EAGAIN, unix.ESRCH, unix.ENOENT} {
		if errors.Is(err, none) {
			return nil
		}
	}
	return fmt.Errorf("look up the route to %s: %w", addr, err)
}

// leadsElsewhere reports whether a route shows that another host or link has its destination. The default route, the zeroconf route, routes
// that reject packets and those through the agent's own link do not.
func leadsElsewhere(own netlink.Link, r netlink.Route) bool {
	dst := prefixOf(r.Dst)
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

// describe returns a route as ip(8) prints it, reduced to the parts that identify it.
func (k kernel) describe(r netlink.Route) string {
	text := prefixOf(r.Dst).String()
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
