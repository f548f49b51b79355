package steer

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// WayError says why a pod's packets to a cluster DNS address would not meet this host's switch. Such a pod must be left
// alone: its packets would carry an address that nothing else knows.
type WayError struct{ Reason string }

func (e *WayError) Error() string { return e.Reason }

func noWay(format string, args ...any) error { return &WayError{Reason: fmt.Sprintf(format, args...)} }

// Way looks at a pod's route to r's cluster DNS address, without sending a packet. It returns the interface by which the
// pod's packets enter the host's netns (the veth's host side, or the bridge it is a port of), or a *WayError where they
// go elsewhere: another kind of link (macvlan, SR-IOV), a peer in another netns, an OVS port, or a next hop that is not
// this host. podNS and hostNS are descriptors of the two namespaces. Other errors mean that it could not be told.
func Way(podNS, hostNS int, r Redirect) (string, error) {
	pod, err := netlinksafe.NewHandleAt(netns.NsHandle(podNS), unix.NETLINK_ROUTE)
	if err != nil {
		return "", fmt.Errorf("open netlink in the pod's netns: %w", err)
	}
	defer pod.Close()
	host, err := netlinksafe.NewHandleAt(netns.NsHandle(hostNS), unix.NETLINK_ROUTE)
	if err != nil {
		return "", fmt.Errorf("open netlink in the host's netns: %w", err)
	}
	defer host.Close()

	routes, err := pod.RouteGet(r.ClusterDNS.AsSlice())
	if err != nil || len(routes) == 0 {
		return "", noWay("the pod has no route to %s (%v)", r.ClusterDNS, err)
	}
	route := routes[0]
	if route.Type != unix.RTN_UNICAST {
		return "", noWay("the pod's route to %s is not a unicast one", r.ClusterDNS)
	}
	link, err := pod.LinkByIndex(route.LinkIndex)
	if err != nil {
		return "", fmt.Errorf("look up the pod's link %d: %w", route.LinkIndex, err)
	}
	if link.Type() != "veth" {
		return "", noWay("the pod's route to %s leaves by %s, a %s link, not by a veth into this host", r.ClusterDNS, link.Attrs().Name, link.Type())
	}
	peer, err := hostPeer(pod.Handle, host, link, podNS)
	if err != nil {
		return "", err
	}
	entry := peer
	if peer.Attrs().MasterIndex != 0 {
		if entry, err = host.LinkByIndex(peer.Attrs().MasterIndex); err != nil {
			return "", fmt.Errorf("look up the master of %s: %w", peer.Attrs().Name, err)
		}
		switch entry.Type() {
		case "bridge":
		case "vrf":
			entry = peer
		default:
			return "", noWay("%s, the pod's link in the host, is a port of %s (%s), which takes packets before netfilter", peer.Attrs().Name, entry.Attrs().Name, entry.Type())
		}
	}
	if err := nextHopIsHost(pod.Handle, host.Handle, hostNS, route, link, peer, entry); err != nil {
		return "", err
	}
	return entry.Attrs().Name, nil
}

// hostPeer finds the other end of the pod's veth in the host's netns. Interface indexes are only unique in a netns, so the
// peer must point back: by index, and at the pod's netns by id where the kernel tells one.
func hostPeer(pod *netlink.Handle, host netlinksafe.Handle, link netlink.Link, podNS int) (netlink.Link, error) {
	name, index := link.Attrs().Name, link.Attrs().ParentIndex
	if index == 0 {
		return nil, noWay("%s: the kernel does not tell its peer", name)
	}
	peer, err := host.LinkByIndex(index)
	var gone netlink.LinkNotFoundError
	if errors.As(err, &gone) {
		return nil, noWay("the peer of %s is not in this host's netns", name)
	} else if err != nil {
		return nil, fmt.Errorf("look up the peer of %s: %w", name, err)
	}
	if peer.Type() != "veth" || peer.Attrs().ParentIndex != link.Attrs().Index {
		return nil, noWay("the peer of %s is not in this host's netns", name)
	}
	// Looking the peer up made the kernel give the netns at its other end an id here, so a pod's netns without one is
	// not that netns.
	if id, err := host.GetNetNsIdByFd(podNS); err == nil && (id < 0 || peer.Attrs().NetNsID != id) {
		return nil, noWay("the peer of %s is not in this host's netns", name)
	}
	return peer, nil
}

// nextHopIsHost checks that what the pod sends to its next hop arrives in this host's IP stack.
func nextHopIsHost(pod, host *netlink.Handle, hostNS int, route netlink.Route, link, peer, entry netlink.Link) error {
	gw, ok := netip.AddrFromSlice(route.Gw)
	if via, isVia := route.Via.(*netlink.Via); isVia && !ok {
		gw, ok = netip.AddrFromSlice(via.Addr)
	}
	gw = gw.Unmap()
	family := unix.AF_INET
	if ip := route.Dst; ip != nil && ip.IP.To4() == nil {
		family = unix.AF_INET6
	}
	if ok {
		if gw.Is6() {
			family = unix.AF_INET6
		}
		held, err := holds(host, gw, entry)
		if err != nil {
			return err
		}
		if held || answersFor(pod, gw, link, peer, entry) {
			return nil
		}
	}
	proxied, err := proxies(hostNS, entry.Attrs().Name, peer.Attrs().Name, family)
	if err != nil {
		return err
	}
	if proxied {
		return nil
	}
	if !ok {
		return noWay("the pod reaches %s on the link itself, and %s does no proxy ARP: the next hop is not this host", route.Dst, entry.Attrs().Name)
	}
	return noWay("the pod's next hop %s is not an address of this host", gw)
}

// holds reports whether gw is an address of the host; a link-local one only counts on the link that the pod is on.
func holds(host *netlink.Handle, gw netip.Addr, entry netlink.Link) (bool, error) {
	family := unix.AF_INET
	if gw.Is6() {
		family = unix.AF_INET6
	}
	var on netlink.Link
	if gw.Is6() && gw.IsLinkLocalUnicast() {
		on = entry
	}
	addrs, err := host.AddrList(on, family)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return false, fmt.Errorf("list the host's addresses: %w", err)
	}
	for _, a := range addrs {
		if got, ok := netip.AddrFromSlice(a.IP); ok && got.Unmap() == gw {
			return true, nil
		}
	}
	return false, nil
}

// answersFor reports whether the pod holds a permanent neighbour entry for gw that is the host's own link (the AWS VPC CNI
// writes one).
func answersFor(pod *netlink.Handle, gw netip.Addr, link, peer, entry netlink.Link) bool {
	family := unix.AF_INET
	if gw.Is6() {
		family = unix.AF_INET6
	}
	neighbours, err := pod.NeighList(link.Attrs().Index, family)
	if err != nil {
		return false
	}
	for _, n := range neighbours {
		if n.State&unix.NUD_PERMANENT == 0 || !n.IP.Equal(net.IP(gw.AsSlice())) {
			continue
		}
		if mac := n.HardwareAddr.String(); mac == peer.Attrs().HardwareAddr.String() || mac == entry.Attrs().HardwareAddr.String() {
			return true
		}
	}
	return false
}

// proxies reads proxy_arp or proxy_ndp of the links in the host's netns: with it the host takes any next hop as itself.
func proxies(hostNS int, entry, peer string, family int) (bool, error) {
	dir, file := "ipv4", "proxy_arp"
	if family == unix.AF_INET6 {
		dir, file = "ipv6", "proxy_ndp"
	}
	var on bool
	err := inNetNS(hostNS, func() error {
		for _, name := range []string{entry, peer, "all"} {
			data, err := os.ReadFile(filepath.Join("/proc/sys/net", dir, "conf", name, file))
			if errors.Is(err, os.ErrNotExist) {
				continue
			} else if err != nil {
				return fmt.Errorf("read %s of %s: %w", file, name, err)
			}
			if len(data) > 0 && data[0] == '1' {
				on = true
			}
		}
		return nil
	})
	return on, err
}

// inNetNS runs f on a thread of its own in another netns. The thread ends with it where it could not be brought back.
func inNetNS(fd int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("open own netns: %w", err)
			return
		}
		defer func() { _ = unix.Close(home) }()
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("enter netns: %w", err)
			return
		}
		err = f()
		// A thread that cannot go back stays locked, so the runtime ends it with this goroutine.
		if unix.Setns(home, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}
