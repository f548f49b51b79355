package hostnet

import (
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Uplinks returns the names of the interfaces in the calling thread's netns that lead away from this node. Clients behind them must not be
// served from the node's cache, because the node would then be a resolver for its whole network segment. Their queries to the cluster DNS
// address go to kube-dns.
//
// A link is an uplink if it has a default route, or if its kind leads to other machines (a plain device, a VLAN, a bond, a tunnel between
// nodes). A link that has an uplink as a port (a bridge or bond, but not a VRF) is an uplink too, and so is the link below an uplink. No
// other link is, because CNI plugins attach pods by the other kinds: veth, bridge, Open vSwitch port, macvlan, ipvlan, netkit, tun, and
// kinds that do not exist yet.
//
// none names links that are never uplinks: the caller's own, and those that are known to have steered pods behind them. In doubt, serving
// a neighbour of the node does less harm than leaving a pod without the cache.
func Uplinks(none ...string) ([]string, error) {
	links, err := netlinksafe.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	up, err := defaultRouteLinks()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if a := l.Attrs(); leadsAway(l.Type()) && a.Flags&net.FlagLoopback == 0 {
			up[a.Index] = true
		}
	}
	// Links can be stacked (a bridge on a bond on a VLAN), so repeat the loop until it marks no further link as an uplink.
	for changed := true; changed; {
		changed = false
		mark := func(index int) {
			if index != 0 && !up[index] {
				up[index], changed = true, true
			}
		}
		for _, l := range links {
			a := l.Attrs()
			if !up[a.Index] {
				continue
			}
			if !isPair(l.Type()) {
				mark(below(l))
			}
			// If the port of a VRF is an uplink, the VRF need not be one, because netfilter first sees a packet with the port as its
			// interface.
			if slices.ContainsFunc(links, func(m netlink.Link) bool { return m.Attrs().Index == a.MasterIndex && m.Type() != "vrf" }) {
				mark(a.MasterIndex)
			}
		}
	}
	var names []string
	for _, l := range links {
		if a := l.Attrs(); up[a.Index] && !slices.Contains(none, a.Name) {
			names = append(names, a.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// below returns the index of the link below a link, or of its peer; 0 if there is none or it is in another netns.
func below(l netlink.Link) int {
	if a := l.Attrs(); a.NetNsID < 0 {
		return a.ParentIndex
	}
	return 0
}

// leadsAway reports whether links of this kind in the host's netns lead to other machines, not to pods.
func leadsAway(kind string) bool {
	switch kind {
	case "device", "vlan", "bond", "team",
		"vxlan", "geneve", "gre", "gretap", "ip6gre", "ip6gretap", "ipip", "sit", "ip6tnl", "vti", "vti6", "xfrm", "wireguard":
		return true
	}
	return false
}

// isPair reports whether links of this kind have a peer, and no link below them.
func isPair(kind string) bool { return kind == "veth" || kind == "netkit" }

// Detours returns the names of the veths (and netkit links) whose two ends are both in the netns. The route to a pod may lead to such a
// link although the pod's packets arrive by another one, because a program takes packets from the link's other end to the pod. An example
// is Cilium's cilium_host, if pods have no routes of their own. none names the caller's own veths, which lead to no pod and are left out.
func Detours(nsFD int, none ...string) ([]string, error) {
	var names []string
	err := InNetNS(nsFD, func() error {
		links, err := netlinksafe.LinkList()
		if err != nil {
			return fmt.Errorf("list links: %w", err)
		}
		peers := map[int]int{}
		for _, l := range links {
			if isPair(l.Type()) {
				peers[l.Attrs().Index] = below(l)
			}
		}
		for _, l := range links {
			a := l.Attrs()
			if peer := peers[a.Index]; peer != 0 && peers[peer] == a.Index && !slices.Contains(none, a.Name) {
				names = append(names, a.Name)
			}
		}
		return nil
	})
	slices.Sort(names)
	return names, err
}

// defaultRouteLinks returns the indexes of the interfaces that have a default route of either IP family, in any routing table.
func defaultRouteLinks() (map[int]bool, error) {
	out := map[int]bool{}
	filter := netlink.Route{Table: unix.RT_TABLE_UNSPEC, Type: unix.RTN_UNICAST}
	for _, fam := range []int{unix.AF_INET, unix.AF_INET6} {
		filter.Dst = nil // the default route; the library writes the family's into filter
		routes, err := netlinksafe.RouteListFiltered(fam, &filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE|netlink.RT_FILTER_DST)
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			out[r.LinkIndex] = true
			for _, hop := range r.MultiPath {
				out[hop.LinkIndex] = true
			}
		}
	}
	delete(out, 0)
	return out, nil
}
