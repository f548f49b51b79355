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
// hostNS are descriptors of the two namespaces.
func Way(podNS, hostNS int, clusterDNS netip.Addr) (string, error) {
	found := Ways(podNS, hostNS, clusterDNS)[0]
	return found.HostInterface, found.Err
}

// Ways does for several cluster DNS addresses of one pod what Way does for one.
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

// ways reads the network configuration of one pod and of the host.
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

// Veth finds the host's end of the veth by which a pod's packets to an address leave the pod, even if that end is a port of a bridge. It
// returns a *WayError if there is none. The index is valid as long as that link exists.
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

// veth returns the pod's route to an address, the pod's end of the veth that the route uses, and the host's end.
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

// hostPeer finds the host's end of the pod's veth by its index. Indexes are unique only within a netns, so the link found must have the
// pod's end as its peer: by index, and by the ID of the pod's netns if the lookup of that ID works.
func (w *ways) hostPeer(own link) (link, error) {
	if own.peer == 0 {
		return link{}, noWay("%s: the kernel does not report its peer", own.name)
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
	// When the kernel answered the lookup of the peer, it gave the netns at the other end an ID. So if the pod's netns has no ID, it is
	// not at the other end.
	if id, err := w.host.nsidOf(w.podNS); err == nil && (id < 0 || peer.nsid != id) {
		return link{}, elsewhere
	}
	return peer, nil
}

// nextHopIsHost returns an error unless packets to the pod's next hop arrive in this host's IP stack.
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
		// The pod may have a permanent neighbour entry for the next hop with a hardware address of the host, as the AWS VPC CNI writes it.
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
		return noWay("the pod reaches %s on the link itself, and %s does no proxy ARP or NDP: the next hop is not this host", clusterDNS,
			entry.name)
	}
	return noWay("the pod's next hop %s is not an address of this host", gw)
}

// proxies reports whether proxy_arp or proxy_ndp is on for one of two links in the host's netns, or for all links there. If so, the host
// may answer the pod's address resolution for a next hop that is not its own address.
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
