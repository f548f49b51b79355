package hostnet

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// WayError is the reason why a pod's packets to a cluster DNS address do not pass the rules in this host's netns. Such a pod must not be
// steered, because its packets would go to the steering address, which only these rules know.
type WayError struct{ Reason string }

func (e *WayError) Error() string { return e.Reason }

func noWay(format string, args ...any) error { return &WayError{Reason: fmt.Sprintf(format, args...)} }

// Found is the result of Ways for one cluster DNS address: the interface by which the pod's packets enter the host, or the error.
type Found struct {
	HostInterface string
	Err           error
}

// Way follows a pod's route to a cluster DNS address, without sending a packet. It returns the interface by which the pod's packets enter
// the host's netns: the host's end of the pod's veth, or the bridge that this end is a port of. It returns a *WayError if the packets go
// elsewhere, for example by a macvlan, or if the lookup of the pod's route fails. Other errors mean that the result is unknown. podNS and
// hostNS are descriptors of the two namespaces; a hostNS of 0 is the calling thread's.
func Way(podNS, hostNS int, clusterDNS netip.Addr) (string, error) {
	found := Ways(podNS, hostNS, clusterDNS)[0]
	return found.HostInterface, found.Err
}

// Ways does for several cluster DNS addresses of one pod what Way does for one.
func Ways(podNS, hostNS int, clusterDNS ...netip.Addr) []Found {
	out := make([]Found, len(clusterDNS))
	w, err := openWays(podNS, hostNS)
	defer w.close()
	for i, a := range clusterDNS {
		if out[i].Err = err; err == nil {
			out[i].HostInterface, out[i].Err = w.to(a)
		}
	}
	return out
}

// ways reads the network configuration of one pod and of the host. If possible, it requests a single entry instead of a list, because a
// node has hundreds of links, and this runs at each pod's start.
type ways struct{ pod, host Handle }

func openWays(podNS, hostNS int) (w ways, err error) {
	if w.pod, err = OpenHandle(podNS); err != nil {
		return w, fmt.Errorf("in the pod's netns: %w", err)
	}
	if w.host, err = OpenHandle(hostNS); err != nil {
		return w, fmt.Errorf("in the host's netns: %w", err)
	}
	return w, nil
}

func (w ways) close() {
	w.pod.Close()
	w.host.Close()
}

// Whole returns a list that was read without interruption: a change of the listed objects interrupts a dump, which may then lack some. read
// is called eight times at most; if the last call was interrupted, too, its error is returned.
func Whole[T any](read func() ([]T, error)) (list []T, err error) {
	const attempts = 8
	for range attempts {
		if list, err = read(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return list, err
}

func (w ways) to(clusterDNS netip.Addr) (string, error) {
	route, own, peer, err := w.veth(clusterDNS)
	if err != nil {
		return "", err
	}
	entry := peer
	if peer.Attrs().MasterIndex != 0 {
		if entry, err = w.host.LinkByIndex(peer.Attrs().MasterIndex); err != nil {
			return "", fmt.Errorf("look up the master of %s: %w", peer.Attrs().Name, err)
		}
		switch entry.Type() {
		case "bridge":
		case "vrf":
			entry = peer
		default:
			return "", noWay("%s, the pod's link in the host, is a port of %s (%s), which takes packets before netfilter",
				peer.Attrs().Name, entry.Attrs().Name, entry.Type())
		}
	}
	if err := w.nextHopIsHost(clusterDNS, route, own, peer, entry); err != nil {
		return "", err
	}
	return entry.Attrs().Name, nil
}

// Veth finds the host's end of the veth by which a pod's packets to an address leave the pod, even if that end is a port of a bridge. It
// returns a *WayError if there is none. The index is valid as long as that link exists.
func Veth(podNS, hostNS int, to netip.Addr) (index int, name string, err error) {
	w, err := openWays(podNS, hostNS)
	defer w.close()
	if err != nil {
		return 0, "", err
	}
	_, _, peer, err := w.veth(to)
	if err != nil {
		return 0, "", err
	}
	return peer.Attrs().Index, peer.Attrs().Name, nil
}

// veth returns the pod's route to an address, the pod's end of the veth that the route uses, and the host's end.
func (w ways) veth(to netip.Addr) (r netlink.Route, own, peer netlink.Link, err error) {
	routes, err := w.pod.RouteGet(to.AsSlice())
	if err != nil {
		return r, nil, nil, noWay("the pod has no route to %s (%v)", to, err)
	} else if len(routes) == 0 {
		return r, nil, nil, noWay("the pod has no route to %s (no answer)", to)
	}
	if r = routes[0]; r.Type != unix.RTN_UNICAST {
		return r, nil, nil, noWay("the pod's route to %s is not a unicast one", to)
	}
	if own, err = w.pod.LinkByIndex(r.LinkIndex); err != nil {
		return r, nil, nil, fmt.Errorf("look up link %d in the pod's netns: %w", r.LinkIndex, err)
	}
	if own.Type() != "veth" {
		return r, nil, nil, noWay("the pod's route to %s leaves by %s, a %s link, not by a veth into this host",
			to, own.Attrs().Name, own.Type())
	}
	peer, err = w.hostPeer(own.Attrs())
	return r, own, peer, err
}

// hostPeer finds the host's end of the pod's veth by its index. Indexes are unique only within a netns, so the link found must have the
// pod's end as its peer: by index, and by the ID of the pod's netns if the lookup of that ID works.
func (w ways) hostPeer(own *netlink.LinkAttrs) (netlink.Link, error) {
	if own.ParentIndex == 0 {
		return nil, noWay("%s: the kernel does not report its peer", own.Name)
	}
	elsewhere := noWay("the peer of %s is not in this host's netns", own.Name)
	peer, err := w.host.LinkByIndex(own.ParentIndex)
	if IsNoLink(err) {
		return nil, elsewhere
	} else if err != nil {
		return nil, fmt.Errorf("look up the peer of %s: %w", own.Name, err)
	}
	if peer.Type() != "veth" || peer.Attrs().ParentIndex != own.Index {
		return nil, elsewhere
	}
	// When the kernel answered the lookup of the peer, it gave the netns at the other end an ID. So if the pod's netns has no ID, it is
	// not at the other end.
	if id, err := w.host.GetNetNsIdByFd(w.pod.nsFD); err == nil && (id < 0 || peer.Attrs().NetNsID != id) {
		return nil, elsewhere
	}
	return peer, nil
}

// nextHopIsHost returns an error unless packets to the pod's next hop arrive in this host's IP stack.
func (w ways) nextHopIsHost(clusterDNS netip.Addr, route netlink.Route, own, peer, entry netlink.Link) error {
	gw := route.Gw
	if via, ok := route.Via.(*netlink.Via); ok && gw == nil { // a gateway of the other IP family
		gw = via.Addr
	}
	hop := clusterDNS
	if gw != nil {
		hop, _ = netip.AddrFromSlice(gw)
		isHost, err := w.isHost(hop, entry.Attrs().Index)
		if err != nil || isHost {
			return err
		}
		// The pod may have a permanent neighbour entry for the next hop with a hardware address of the host, as the AWS VPC CNI writes it.
		neighbours, err := Whole(func() ([]netlink.Neigh, error) { return w.pod.NeighList(own.Attrs().Index, Family(hop)) })
		if err == nil && slices.ContainsFunc(neighbours, func(n netlink.Neigh) bool {
			mac := n.HardwareAddr.String()
			return n.State&netlink.NUD_PERMANENT != 0 && n.IP.Equal(gw) && len(mac) > 0 &&
				(mac == peer.Attrs().HardwareAddr.String() || mac == entry.Attrs().HardwareAddr.String())
		}) {
			return nil
		}
	}
	proxied, err := w.proxies(Family(hop), entry.Attrs().Name, peer.Attrs().Name, "all")
	switch {
	case err != nil || proxied:
		return err
	case gw == nil:
		return noWay("the pod reaches %s on the link itself, and %s does no proxy ARP or NDP: the next hop is not this host", clusterDNS,
			entry.Attrs().Name)
	}
	return noWay("the pod's next hop %s is not an address of this host", gw)
}

// Family returns an address's family: AF_INET or AF_INET6.
func Family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// isHost reports whether the host has address a. An IPv6 link-local address counts only if it is on the link with index on.
func (w ways) isHost(a netip.Addr, on int) (bool, error) {
	addrs, err := Whole(func() ([]netlink.Addr, error) { return w.host.AddrList(nil, Family(a)) })
	if err != nil {
		return false, fmt.Errorf("list the host's addresses: %w", err)
	}
	return slices.ContainsFunc(addrs, func(h netlink.Addr) bool {
		return h.IP.Equal(a.AsSlice()) && (h.LinkIndex == on || !a.Is6() || !a.IsLinkLocalUnicast())
	}), nil
}

// proxies reports whether proxy_arp or proxy_ndp is on in one of the folders of settings that the host's netns has for links. If so, the
// host may answer the pod's address resolution for a next hop that is not its own address.
func (w ways) proxies(family int, folders ...string) (on bool, err error) {
	dir, file := "ipv4", "proxy_arp"
	if family == unix.AF_INET6 {
		dir, file = "ipv6", "proxy_ndp"
	}
	err = w.host.Do(func() error {
		for _, name := range folders {
			is, err := reads(filepath.Join("/proc/sys/net", dir, "conf", name, file), "1")
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			on = on || is
		}
		return nil
	})
	return on, err
}
