package steer

import (
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Uplinks names the interfaces of the calling thread's netns that lead away from this node: from them nobody may use the
// node's cache, or the node would be a resolver for its whole segment. Pods come through veths and bridges, so an uplink
// is every other link but loopback and our own, everything that holds a default route, and every bridge that has an uplink
// as a port. podSide names links known to carry steered pods; they are never uplinks, since a pod cut off is worse than a
// neighbour served.
func Uplinks(podSide ...string) ([]string, error) {
	links, err := netlinksafe.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	defaults, err := defaultRouteLinks()
	if err != nil {
		return nil, err
	}
	up := map[int]bool{}
	for _, l := range links {
		kind, a := l.Type(), l.Attrs()
		inside := kind == "veth" || kind == "bridge" || kind == "dummy" || a.Flags&net.FlagLoopback != 0
		up[a.Index] = !inside || defaults[a.Index]
	}
	// A port's bridge is an uplink too; bridges do not nest, but bonds under bridges do, so run until nothing changes.
	for changed := true; changed; {
		changed = false
		for _, l := range links {
			if a := l.Attrs(); up[a.Index] && a.MasterIndex != 0 && !up[a.MasterIndex] {
				up[a.MasterIndex], changed = true, true
			}
		}
	}
	var names []string
	for _, l := range links {
		if a := l.Attrs(); up[a.Index] && a.Name != ProberInterface && !slices.Contains(podSide, a.Name) {
			names = append(names, a.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// defaultRouteLinks returns the interfaces, by index, that hold a default route of either family in any table.
func defaultRouteLinks() (map[int]bool, error) {
	out := map[int]bool{}
	for _, fam := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := netlinksafe.RouteListFiltered(fam, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			if r.Dst != nil {
				if ones, _ := r.Dst.Mask.Size(); ones != 0 || !r.Dst.IP.IsUnspecified() {
					continue
				}
			}
			if r.Type != unix.RTN_UNICAST {
				continue
			}
			out[r.LinkIndex] = true
			for _, hop := range r.MultiPath {
				out[hop.LinkIndex] = true
			}
		}
	}
	delete(out, 0)
	return out, nil
}
