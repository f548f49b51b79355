package node

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// outsideNS is where the world outside of the cluster is mounted, in the node's mount namespace.
func outsideNS() string { return path("outside.netns") }

// makeLinks builds the node's network, in the calling process's own: eth0 with the node's addresses, the world outside behind
// it. The bridge of the pods is their plugin's business.
func makeLinks() error {
	if err := os.WriteFile(outsideNS(), nil, 0o444); err != nil {
		return err
	}
	if err := inNewNS(func() error { return unix.Mount("/proc/thread-self/ns/net", outsideNS(), "", unix.MS_BIND, "") }); err != nil {
		return fmt.Errorf("make the outside: %w", err)
	}
	ns, err := netns.GetFromPath(outsideNS())
	if err != nil {
		return err
	}
	defer ns.Close()
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
	for key, value := range map[string]string{
		"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1",
		// Answers of a pod to a pod of the same bridge must pass where kube-proxy's translation is undone.
		"net/bridge/bridge-nf-call-iptables": "1", "net/bridge/bridge-nf-call-ip6tables": "1",
	} {
		if err := os.WriteFile("/proc/sys/"+key, []byte(value), 0); err != nil {
			return fmt.Errorf("%w: load the kernel's module %s", err, strings.Split(key, "/")[1])
		}
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "segment", PeerNamespace: netlink.NsFd(int(ns))}
	if err := here.LinkAdd(veth); err != nil {
		return fmt.Errorf("make eth0: %w", err)
	}
	if err := up(here, "eth0", nodeAddr4+"/24", nodeAddr6+"/64"); err != nil {
		return err
	}
	if err := up(there, "segment", outsideAddr4+"/24", outsideAddr6+"/64"); err != nil {
		return err
	}
	return errors.Join(up(here, "lo"), up(there, "lo"),
		route(here, "0.0.0.0/0", outsideAddr4), route(here, "::/0", outsideAddr6),
		route(there, podRange4, nodeAddr4), route(there, podRange6, nodeAddr6))
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
