package node

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// outsideNS is where the world outside of the cluster is mounted, in the first node's mount namespace.
func outsideNS() string { return path("outside.netns") }

// makeOutside makes the world outside, which is also the router between the nodes, and mounts it at outsideNS.
func makeOutside() (netns.NsHandle, error) {
	if err := os.WriteFile(outsideNS(), nil, 0o444); err != nil {
		return netns.None(), err
	}
	err := inNewNS(func() error {
		if err := forward(); err != nil {
			return err
		}
		return unix.Mount("/proc/thread-self/ns/net", outsideNS(), "", unix.MS_BIND, "")
	})
	if err != nil {
		return netns.None(), fmt.Errorf("make the outside: %w", err)
	}
	return netns.GetFromPath(outsideNS())
}

// forward lets the calling thread's network namespace pass packets on.
func forward() error {
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/"+key, []byte("1"), 0); err != nil {
			return err
		}
	}
	return nil
}

// makeLinks builds a node's network, in the calling process's own: eth0 with the node's addresses, the world outside (ns) behind
// it. The bridge of the pods is their plugin's business.
func (h host) makeLinks(ns netns.NsHandle) error {
	here, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer here.Close()
	there, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer there.Close()
	if err := forward(); err != nil {
		return err
	}
	// Answers of a pod to a pod of the same bridge must pass where kube-proxy's translation is undone.
	for _, key := range []string{"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"} {
		if err := os.WriteFile("/proc/sys/"+key, []byte("1"), 0); err != nil {
			return fmt.Errorf("%w: load the kernel's module br_netfilter", err)
		}
	}
	segment := fmt.Sprintf("segment%d", h)
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: segment, PeerNamespace: netlink.NsFd(int(ns))}
	if err := here.LinkAdd(veth); err != nil {
		return fmt.Errorf("make eth0: %w", err)
	}
	own, outside, pods := h.addrs(), h.outside(), h.pods()
	if err := up(here, "eth0", own[0]+"/24", own[1]+"/64"); err != nil {
		return err
	}
	if err := up(there, segment, outside[0]+"/24", outside[1]+"/64"); err != nil {
		return err
	}
	return errors.Join(up(here, "lo"), up(there, "lo"),
		route(here, "0.0.0.0/0", outside[0]), route(here, "::/0", outside[1]),
		route(there, pods[0], own[0]), route(there, pods[1], own[1]))
}

// inNewNS runs f in a network namespace of its own. The thread comes back: it may be the process's first, by which others
// find the process's namespaces.
func inNewNS(f func() error) (err error) {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer home.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	err = f()
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, back) // the thread stays locked, and the process ends with this error
	}
	runtime.UnlockOSThread()
	return err
}

// up brings a link up with addresses that serve at once.
func up(h *netlink.Handle, name string, addrs ...string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring %s up: %w", name, err)
	}
	for _, text := range addrs {
		a, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		if a.IP.To4() == nil {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := h.AddrAdd(link, a); err != nil {
			return fmt.Errorf("add %s to %s: %w", text, name, err)
		}
	}
	return nil
}

func route(h *netlink.Handle, dst, via string) error {
	_, to, err := net.ParseCIDR(dst)
	if err != nil {
		return err
	}
	if err := h.RouteAdd(&netlink.Route{Dst: to, Gw: net.ParseIP(via)}); err != nil {
		return fmt.Errorf("add route to %s by %s: %w", dst, via, err)
	}
	return nil
}
