package hostnet

import (
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Uplinks names the interfaces of the calling thread's netns that lead away from this node: who comes by them is not served
// from the node's cache, or the node would be a resolver for its whole segment, but given what the cluster DNS address gives.
//
// An uplink holds a default route, or leads away by its nature (a plain device, a VLAN, a bond, a tunnel between nodes); so
// does the bridge or bond that has an uplink as a port, and what an uplink stands on. Any other kind of link is none: pods come
// by veths, bridges, ports of Open vSwitch, macvlan and ipvlan ends, netkit, tun, and by what is yet to be made. none names
// links that never are: those known to carry steered pods, since a pod without the cache is worse than a neighbour with it, and the
// caller's own.
func Uplinks(none ...string) ([]string, error) {
	links, err := netlinksafe.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	defaults, err := defaultRouteLinks()
	if err != nil {
		return nil, err
	}
	seen := make([]seenLink, 0, len(links))
	for _, l := range links {
		seen = append(seen, look(l))
	}
	return uplinks(seen, defaults, none), nil
}

// seenLink is one link as far as its place in the node's network goes.
type seenLink struct {
	index    int
	name     string
	kind     string // "device" where the driver has none, as hardware
	master   int    // 0: none
	below    int    // the link that it stands on, or its peer; 0: none, or in another netns
	loopback bool
}

func look(l netlink.Link) seenLink {
	a := l.Attrs()
	s := seenLink{index: a.Index, name: a.Name, kind: l.Type(), master: a.MasterIndex, loopback: a.Flags&net.FlagLoopback != 0}
	if a.NetNsID < 0 {
		s.below = a.ParentIndex
	}
	return s
}

// leadsAway tells kinds of links that no CNI plugin attaches pods by, and behind which other machines are.
func leadsAway(kind string) bool {
	switch kind {
	case "device", "vlan", "bond", "team", "vxlan", "geneve", "gre", "gretap", "ip6gre", "ip6gretap", "ipip", "sit", "ip6tnl", "vti", "vti6", "xfrm", "wireguard":
		return true
	}
	return false
}

// pair tells kinds whose other end is a peer, not a link that they stand on.
func pair(kind string) bool { return kind == "veth" || kind == "netkit" }

func uplinks(links []seenLink, defaults map[int]bool, none []string) []string {
	up := map[int]bool{}
	for _, l := range links {
		up[l.index] = defaults[l.index] || leadsAway(l.kind) && !l.loopback
	}
	// Bridges stand on bonds and these on VLANs, so run until nothing changes.
	for changed := true; changed; {
		changed = false
		mark := func(index int) {
			if index != 0 && !up[index] {
				up[index], changed = true, true
			}
		}
		for _, l := range links {
			if !up[l.index] {
				continue
			}
			if !pair(l.kind) {
				mark(l.below)
			}
			// What comes by a port of a VRF comes by the port's name first.
			if slices.ContainsFunc(links, func(m seenLink) bool { return m.index == l.master && m.kind != "vrf" }) {
				mark(l.master)
			}
		}
	}
	var names []string
	for _, l := range links {
		if up[l.index] && !slices.Contains(none, l.name) {
			names = append(names, l.name)
		}
	}
	slices.Sort(names)
	return names
}

// Detours names the links of a netns by which the route to a pod may lead although its packets come by another: veths with
// both ends there. What takes a packet out at such an end and brings it to its pod is no route (Cilium's cilium_host, where
// pods have no routes of their own), so no route tells behind which link a pod lives. none
// names the caller's own veths, behind which nobody lives.
func Detours(nsFD int, none ...string) ([]string, error) {
	var names []string
	err := InNetNS(nsFD, func() error {
		links, err := netlinksafe.LinkList()
		if err != nil {
			return fmt.Errorf("list links: %w", err)
		}
		peers := map[int]int{}
		for _, l := range links {
			if s := look(l); pair(s.kind) {
				peers[s.index] = s.below
			}
		}
		for _, l := range links {
			s := look(l)
			if slices.Contains(none, s.name) || peers[s.index] == 0 || peers[peers[s.index]] != s.index {
				continue
			}
			names = append(names, s.name)
		}
		return nil
	})
	slices.Sort(names)
	return names, err
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
