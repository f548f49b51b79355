package hostnet

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// WayError is the reason why a pod's packets to a cluster DNS address do not pass this host's switch. Such a pod must not be steered: only
// the switch knows the steering address that its packets would carry.
type WayError struct{ Reason string }

func (e *WayError) Error() string { return e.Reason }

func noWay(format string, args ...any) error { return &WayError{Reason: fmt.Sprintf(format, args...)} }

// Found is the result of Ways for one address: the interface, or why there is none.
type Found struct {
	HostInterface string
	Err           error
}

// Way follows a pod's route to a cluster DNS address, without sending a packet. It returns the interface by which the
// pod's packets enter the host's netns (the veth's host side, or the bridge it is a port of), or a *WayError if they
// go elsewhere: another kind of link (macvlan, SR-IOV), a peer in another netns, an OVS port, or a next hop that is not
// this host. podNS and hostNS are descriptors of the two namespaces. Other errors mean that the result is unknown.
func Way(podNS, hostNS int, clusterDNS netip.Addr) (string, error) {
	found := Ways(podNS, hostNS, clusterDNS)[0]
	return found.HostInterface, found.Err
}

// Ways is Way for several addresses of one pod.
func Ways(podNS, hostNS int, clusterDNS ...netip.Addr) []Found {
	out := make([]Found, len(clusterDNS))
	w, err := openWays(podNS, hostNS)
	if err == nil {
		defer w.pod.close()
		defer w.host.close()
	}
	for i, a := range clusterDNS {
		if out[i].Err = err; err == nil {
			out[i].HostInterface, out[i].Err = w.to(a)
		}
	}
	return out
}

// ways reads the networks of one pod and of the host.
type ways struct {
	pod, host     links
	podNS, hostNS int
}

func openWays(podNS, hostNS int) (*ways, error) {
	pod, err := openLinks(podNS)
	if err != nil {
		return nil, fmt.Errorf("in the pod's netns: %w", err)
	}
	host, err := openLinks(hostNS)
	if err != nil {
		pod.close()
		return nil, fmt.Errorf("in the host's netns: %w", err)
	}
	return &ways{pod: pod, host: host, podNS: podNS, hostNS: hostNS}, nil
}

func (w *ways) to(clusterDNS netip.Addr) (string, error) {
	route, own, peer, err := w.veth(clusterDNS)
	if err != nil {
		return "", err
	}
	entry := peer
	if peer.master != 0 {
		if entry, err = w.host.link(peer.master); err != nil {
			return "", fmt.Errorf("master of %s: %w", peer.name, err)
		}
		switch entry.kind {
		case "bridge":
		case "vrf":
			entry = peer
		default:
			return "", noWay("%s, the pod's link in the host, is a port of %s (%s), which takes packets before netfilter",
				peer.name, entry.name, cmp.Or(entry.kind, "device"))
		}
	}
	if err := w.nextHopIsHost(clusterDNS, route, own, peer, entry); err != nil {
		return "", err
	}
	return entry.name, nil
}

// Veth finds the link in the host's netns by which a pod's packets to an address leave the pod: the host's end of its veth, even if
// that is a port of a bridge. It returns a *WayError if there is none. The index is valid while a link of that name exists.
func Veth(podNS, hostNS int, to netip.Addr) (index int, name string, err error) {
	w, err := openWays(podNS, hostNS)
	if err != nil {
		return 0, "", err
	}
	defer w.pod.close()
	defer w.host.close()
	_, _, peer, err := w.veth(to)
	return peer.index, peer.name, err
}

// veth finds the pod's end and the host's.
func (w *ways) veth(to netip.Addr) (r route, own, peer link, err error) {
	if r, err = w.pod.route(to); err != nil {
		return r, own, peer, noWay("the pod has no route to %s (%v)", to, err)
	}
	if r.kind != unix.RTN_UNICAST {
		return r, own, peer, noWay("the pod's route to %s is not a unicast one", to)
	}
	if own, err = w.pod.link(r.link); err != nil {
		return r, own, peer, fmt.Errorf("in the pod's netns: %w", err)
	}
	if own.kind != "veth" {
		return r, own, peer, noWay("the pod's route to %s leaves by %s, a %s link, not by a veth into this host",
			to, own.name, cmp.Or(own.kind, "device"))
	}
	peer, err = w.hostPeer(own)
	return r, own, peer, err
}

// hostPeer finds the other end of the pod's veth in the host's netns. Interface indexes are only unique in a netns, so the
// peer must point back: by index, and to the pod's netns by ID if the kernel has one.
func (w *ways) hostPeer(own link) (link, error) {
	if own.peer == 0 {
		return link{}, noWay("%s: the kernel does not tell its peer", own.name)
	}
	elsewhere := noWay("the peer of %s is not in this host's netns", own.name)
	peer, err := w.host.link(own.peer)
	if errors.Is(err, errNoLink) {
		return link{}, elsewhere
	} else if err != nil {
		return link{}, fmt.Errorf("peer of %s: %w", own.name, err)
	}
	if peer.kind != "veth" || peer.peer != own.index {
		return link{}, elsewhere
	}
	// Looking the peer up made the kernel give the netns at its other end an id here, so a pod's netns without an ID
	// is not that netns.
	if id, err := w.host.nsidOf(w.podNS); err == nil && (id < 0 || peer.nsid != id) {
		return link{}, elsewhere
	}
	return peer, nil
}

// nextHopIsHost checks that packets to the pod's next hop arrive in this host's IP stack.
func (w *ways) nextHopIsHost(clusterDNS netip.Addr, route route, own, peer, entry link) error {
	family := familyNumber(clusterDNS)
	gw := route.gateway
	if gw.IsValid() {
		family = familyNumber(gw)
		isHost, err := w.host.hasAddress(gw, entry.index)
		if err != nil {
			return err
		}
		if isHost {
			return nil
		}
		// The pod may have a permanent neighbour entry with the host link's hardware address, as the AWS VPC CNI writes it.
		if mac, err := w.pod.permanent(gw, own.index); err == nil && mac != "" && (mac == peer.mac || mac == entry.mac) {
			return nil
		}
	}
	proxied, err := proxies(w.hostNS, entry.name, peer.name, family)
	if err != nil {
		return err
	}
	if proxied {
		return nil
	}
	if !gw.IsValid() {
		return noWay("the pod reaches %s on the link itself, and %s does no proxy ARP: the next hop is not this host", clusterDNS, entry.name)
	}
	return noWay("the pod's next hop %s is not an address of this host", gw)
}

// proxies reads proxy_arp or proxy_ndp of the links in the host's netns: if it is on, the host answers for any next hop.
func proxies(hostNS int, entry, peer string, family uint8) (bool, error) {
	dir, file := "ipv4", "proxy_arp"
	if family == unix.AF_INET6 {
		dir, file = "ipv6", "proxy_ndp"
	}
	var on bool
	err := InNetNS(hostNS, func() error {
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
