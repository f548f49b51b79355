package testutil

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Pod is a pod's namespace on a Node.
type Pod struct {
	*NetNS
	HostInterface string       // the host's end of its veth; "" where there is none
	Addrs         []netip.Addr // one per family of the node, IPv4 first

	node *Node
}

// Addr returns the pod's address of an IP family, or the zero Addr if it has none.
func (p *Pod) Addr(is4 bool) netip.Addr {
	for _, a := range p.Addrs {
		if a.Is4() == is4 {
			return a
		}
	}
	return netip.Addr{}
}

// AddPod makes a pod and connects it as Options.Attach of the node selects. It must not be called concurrently.
func (n *Node) AddPod(name string) *Pod {
	n.t.Helper()
	n.pods++
	p := &Pod{NetNS: n.ns(name), node: n}
	switch n.options.Attach {
	case PTP:
		n.attachPTP(p)
	case BridgeCNI, BridgeNF:
		n.attachBridge(p)
	case ProxyARP:
		n.attachProxyARP(p)
	case MACVLAN, Elsewhere:
		n.attachElsewhere(p)
	case NoneAttach:
	default:
		n.t.Fatalf("unknown way to attach a pod: %q", n.options.Attach)
	}
	n.settle(p)
	return p
}

// settle waits until the host's IP stack answers the pod. Even without duplicate address detection, the kernel completes an IPv6 address in
// the background. A query that comes before that waits a second for the next neighbour solicitation.
func (n *Node) settle(p *Pod) {
	n.t.Helper()
	if a := n.options.Attach; a == MACVLAN || a == Elsewhere || a == NoneAttach {
		return // the host is not their next hop
	}
	const discard = 9 // the port: a stack that answers refuses it at once
	for _, host := range n.HostAddrs() {
		Eventually(n.t, func() error {
			var err error
			p.Do(func() {
				var c net.Conn
				if c, err = net.DialTimeout("tcp", netip.AddrPortFrom(host, discard).String(), 2*time.Second); err == nil {
					err = c.Close()
				}
			})
			if errors.Is(err, unix.ECONNREFUSED) {
				return nil
			}
			return err
		})
	}
}

// Delete removes the pod as a runtime does after CNI DEL: the link first, so that its name and routes are free at once.
func (p *Pod) Delete() {
	if p.HostInterface != "" {
		p.node.Host.DelLink(p.HostInterface)
	}
	p.NetNS.Close()
}

// place sets the pod's address in each IP family of the node: the one that follows first4 or first6 at a distance of n.pods, the number of
// pods that the node has had.
func (n *Node) place(p *Pod, first4, first6 netip.Addr) {
	for _, a := range n.both(first4, first6) {
		for range n.pods {
			a = a.Next()
		}
		p.Addrs = append(p.Addrs, a)
	}
}

func (n *Node) veth(p *Pod) {
	n.t.Helper()
	p.HostInterface = fmt.Sprintf("veth%d", n.pods)
	VethPair(n.t, n.Host, p.HostInterface, p.NetNS, "eth0")
}

func (n *Node) attachPTP(p *Pod) {
	n.t.Helper()
	n.place(p, podGateway4.Next(), podGateway6.Next())
	n.veth(p)
	for _, a := range p.Addrs {
		gateway := n.pick(a.Is4(), podGateway4, podGateway6)
		// Every host end has the same gateway address, as the plugin does it.
		n.Host.AddAddr(p.HostInterface, Host(gateway))
		n.Host.AddRoute(Host(a), netip.Addr{}, p.HostInterface)
		n.routeByGateway(p.NetNS, Host(a), gateway)
		p.NetNS.AddRoute(subnet(a), gateway, "eth0")
	}
}

func (n *Node) attachBridge(p *Pod) {
	n.t.Helper()
	n.place(p, podGateway4.Next(), podGateway6.Next())
	n.veth(p)
	n.Host.Port("cni0", p.HostInterface)
	for _, a := range p.Addrs {
		gateway := n.pick(a.Is4(), podGateway4, podGateway6)
		p.NetNS.AddAddr("eth0", subnet(a))
		p.NetNS.AddRoute(DefaultRoute(gateway), gateway, "eth0")
	}
}

func (n *Node) attachProxyARP(p *Pod) {
	n.t.Helper()
	n.place(p, podGateway4.Next(), podGateway6.Next())
	n.veth(p)
	// All of Calico's host ends have this hardware address, and so the same link-local one, which serves as gateway.
	n.Host.Down(p.HostInterface)
	n.Host.SetMAC(p.HostInterface, "ee:ee:ee:ee:ee:ee")
	n.Host.Up(p.HostInterface)
	for _, a := range p.Addrs {
		if a.Is4() {
			n.Host.Sysctl("net.ipv4.conf."+p.HostInterface+".proxy_arp", "1")
			n.Host.Sysctl("net.ipv4.neigh."+p.HostInterface+".proxy_delay", "0")
			n.routeByGateway(p.NetNS, Host(a), proxyARP4)
		} else {
			n.Host.Sysctl("net.ipv6.conf."+p.HostInterface+".proxy_ndp", "1")
			n.routeByGateway(p.NetNS, Host(a), proxyARP6)
		}
		n.Host.AddRoute(Host(a), netip.Addr{}, p.HostInterface)
	}
}

// attachElsewhere puts the pod on the node's segment, where the neighbour is its gateway.
func (n *Node) attachElsewhere(p *Pod) {
	n.t.Helper()
	n.place(p, firstSegment4, firstSegment6)
	if n.options.Attach == MACVLAN {
		attrs := netlink.NewLinkAttrs()
		// Make it under another name and rename it, because Linux 6.1 looks for its first name in the parent's namespace.
		attrs.Name, attrs.ParentIndex = fmt.Sprintf("macvlan%d", n.pods), n.Host.Link("eth0").Attrs().Index
		attrs.Namespace = netlink.NsFd(p.FD())
		link := &netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}
		err := n.Host.handle.LinkAdd(link)
		if err == nil {
			err = p.handle.LinkSetName(p.Link(attrs.Name), "eth0")
		}
		if err != nil {
			n.t.Fatalf("add macvlan for %s (without the driver, attach %q instead): %v", p.Name(), Elsewhere, err)
		}
		p.NoDAD("eth0")
		p.Up("eth0")
	} else {
		port := fmt.Sprintf("pod%d", n.pods)
		VethPair(n.t, n.Neighbour, port, p.NetNS, "eth0")
		n.Neighbour.Port("seg0", port)
	}
	for _, a := range p.Addrs {
		gateway := n.pick(a.Is4(), neighbour4, neighbour6)
		p.NetNS.AddAddr("eth0", subnet(a))
		p.NetNS.AddRoute(DefaultRoute(gateway), gateway, "eth0")
	}
}

// HostLink returns the host's end of the pod's veth, or nil if the pod has no veth.
func (p *Pod) HostLink() netlink.Link {
	if p.HostInterface == "" {
		return nil
	}
	return p.node.Host.Link(p.HostInterface)
}

// MAC returns the hardware address of the pod's eth0.
func (p *Pod) MAC() net.HardwareAddr { return p.Link("eth0").Attrs().HardwareAddr }
