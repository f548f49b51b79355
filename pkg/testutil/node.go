package testutil

import (
	"fmt"
	"net/netip"
	"slices"
)

// Families reports which IP families a node has.
type Families int

// The three kinds of cluster.
const (
	IPv4 Families = iota
	IPv6
	Dual
)

func (f Families) String() string { return [...]string{"ipv4", "ipv6", "dual"}[f] }

// Has reports whether f has IPv4 (is4) or IPv6 (not is4).
func (f Families) Has(is4 bool) bool { return f == Dual || is4 == (f == IPv4) }

// Attach is the way in which pods are connected to their node.
type Attach string

// The ways that primary CNI plugins attach pods.
const (
	PTP        Attach = "ptp"         // the reference ptp plugin: a veth each, routed, gateway on the host's end
	BridgeCNI  Attach = "bridge"      // the reference bridge plugin: cni0, bridge-nf-call-iptables 0
	BridgeNF   Attach = "bridge+brnf" // the same with bridge-nf-call-iptables 1, as kubeadm sets it
	ProxyARP   Attach = "proxyarp"    // Calico: a veth each, gateway 169.254.1.1 by proxy ARP, IPv6 by a link-local address
	MACVLAN    Attach = "macvlan"     // on the node's uplink; the gateway is another machine and the host sees no packet
	Elsewhere  Attach = "elsewhere"   // a veth whose other end is not in the host at all: the same without the macvlan driver
	NoneAttach Attach = ""            // AddPod makes the namespace only: a CNI plugin under test does the rest
)

// Addresses of the topology. The segment next to the node uses documentation ranges.
var (
	clusterDNS4, clusterDNS6 = netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")
	kubeDNS4, kubeDNS6       = netip.MustParseAddr("10.244.2.2"), netip.MustParseAddr("fd00:244:2::2")
	podGateway4, podGateway6 = netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("fd00:244:1::1")
	hostUplink4, hostUplink6 = netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")
	neighbour4, neighbour6   = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	external4, external6     = netip.MustParseAddr("198.51.100.53"), netip.MustParseAddr("2001:db8:53::53")
	firstSegment4            = netip.MustParseAddr("192.0.2.100")
	firstSegment6            = netip.MustParseAddr("2001:db8::100")
	proxyARP4, proxyARP6     = netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("fe80::ecee:eeff:feee:eeee")
)

// Options describe a node. The zero value is IPv4, no kube-proxy, pods not attached.
type Options struct {
	Families Families
	Proxy    ProxyMode
	Attach   Attach
	External bool   // make a DNS server outside the cluster, to which kube-dns forwards names outside the cluster
	NoDNS    bool   // start no scripted server in KubeDNS and ExternalNS, because the caller runs its own there
	Legacy   bool   // kube-proxy in iptables mode uses iptables-legacy instead of this machine's program iptables
	Name     string // part of the namespaces' names; default "node"
}

// Node is one cluster node made of network namespaces, with the parts of a cluster that DNS needs:
//
//	pods ── Host ── eth0 ─ segment ─ Neighbour ── ExternalNS
//	         └───── KubeDNS, the pod behind the cluster DNS address, in another part of the pod range
type Node struct {
	Host       *NetNS // where kubelet, kube-proxy and the agent live
	KubeDNS    *NetNS // kube-dns's pod
	Neighbour  *NetNS // a host next to the node on its uplink segment (bridge seg0), and the way out
	ExternalNS *NetNS // nil without Options.External

	DNS      *DNSServer // the server named "KUBEDNS" in KubeDNS; nil with Options.NoDNS
	External *DNSServer // the server named "EXTERNAL" in ExternalNS; nil without Options.External or with Options.NoDNS
	Proxy    *Proxy

	t       TB
	options Options
	made    []*NetNS // all namespaces of the node
	pods    int      // number of pods made so far, from which the next pod's addresses follow
}

// NewNode makes a node. Cleanup removes all of it.
func NewNode(t TB, o Options) *Node {
	t.Helper()
	if o.Name == "" {
		o.Name = "node"
	}
	if o.Proxy == "" {
		o.Proxy = NoProxy
	}
	n := &Node{t: t, options: o}
	n.Host, n.Neighbour, n.KubeDNS = n.ns("host"), n.ns("neighbour"), n.ns("kubedns")
	n.forward(n.Host)
	n.forward(n.Neighbour)
	n.uplink()
	n.kubeDNS()
	if o.External {
		n.external()
	}
	if o.Attach == BridgeCNI || o.Attach == BridgeNF {
		n.bridge()
	}
	if !o.NoDNS {
		n.serve()
	}
	var services []Service
	for _, ip := range n.ClusterDNS() {
		services = append(services, DNSService(ip, n.pick(ip.Is4(), kubeDNS4, kubeDNS6))...)
	}
	n.Proxy = installProxy(&Proxy{t: t, ns: n.Host, mode: o.Proxy, legacy: o.Legacy}, services)
	if o.Attach == MACVLAN || o.Attach == Elsewhere {
		// Such pods reach Services because the machine that is their gateway translates.
		InstallProxy(t, n.Neighbour, o.Proxy, services...)
	}
	return n
}

func (n *Node) ns(name string) *NetNS {
	n.t.Helper()
	ns := NewNS(n.t, n.options.Name+"-"+name)
	n.made = append(n.made, ns)
	return ns
}

// Keep keeps all of the node's namespaces after this process has ended, so that people can look at them. RemoveKept removes them.
func (n *Node) Keep() {
	n.t.Helper()
	for _, ns := range n.made {
		ns.Keep()
	}
}

// ClusterDNS returns the cluster DNS address of each IP family that the node has, IPv4 first.
func (n *Node) ClusterDNS() []netip.Addr { return n.both(clusterDNS4, clusterDNS6) }

// Service returns the cluster DNS address of an IP family, with port 53.
func (n *Node) Service(is4 bool) netip.AddrPort {
	return netip.AddrPortFrom(n.pick(is4, clusterDNS4, clusterDNS6), 53)
}

// KubeDNSAddrs returns the address of kube-dns's pod in each IP family that the node has.
func (n *Node) KubeDNSAddrs() []netip.Addr { return n.both(kubeDNS4, kubeDNS6) }

// HostAddrs returns the node's address on eth0 in each IP family that the node has.
func (n *Node) HostAddrs() []netip.Addr { return n.both(hostUplink4, hostUplink6) }

// ExternalAddrs returns the external server's address in each IP family that the node has.
func (n *Node) ExternalAddrs() []netip.Addr { return n.both(external4, external6) }

// Gateways returns the host's address that is the pods' gateway (with ptp and bridge) in each IP family. The plugin host-local would choose
// the same.
func (n *Node) Gateways() []netip.Addr { return n.both(podGateway4, podGateway6) }

// PodRange returns the node's part of the cluster's pod addresses of an IP family.
func (n *Node) PodRange(is4 bool) netip.Prefix {
	if is4 {
		return netip.PrefixFrom(podGateway4, 24).Masked()
	}
	return netip.PrefixFrom(podGateway6, 64).Masked()
}

func (n *Node) both(v4, v6 netip.Addr) []netip.Addr {
	return slices.DeleteFunc([]netip.Addr{v4, v6}, func(a netip.Addr) bool { return !n.options.Families.Has(a.Is4()) })
}

func (n *Node) pick(is4 bool, v4, v6 netip.Addr) netip.Addr {
	if is4 {
		return v4
	}
	return v6
}

// forward turns IP forwarding on in a namespace.
func (n *Node) forward(ns *NetNS) {
	n.t.Helper()
	ns.Sysctl("net.ipv4.ip_forward", "1")
	if ns.HasSysctl("net.ipv6") {
		ns.Sysctl("net.ipv6.conf.all.forwarding", "1")
	}
}

func subnet(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(a, 24)
	}
	return netip.PrefixFrom(a, 64)
}

// uplink puts the host on a segment with the neighbour, which is also its default gateway.
func (n *Node) uplink() {
	n.t.Helper()
	n.Neighbour.Bridge("seg0")
	n.setBridgeNF(n.Neighbour, "0")
	VethPair(n.t, n.Host, "eth0", n.Neighbour, "to-host")
	n.Neighbour.Port("seg0", "to-host")
	for _, a := range n.HostAddrs() {
		n.Host.AddAddr("eth0", subnet(a))
		gateway := n.pick(a.Is4(), neighbour4, neighbour6)
		n.Neighbour.AddAddr("seg0", subnet(gateway))
		n.Host.AddRoute(DefaultRoute(gateway), gateway, "eth0")
		all := netip.MustParsePrefix(podCIDR6)
		if a.Is4() {
			all = netip.MustParsePrefix(podCIDR4)
		}
		n.Neighbour.AddRoute(all, a, "seg0")
	}
}

// kubeDNS connects kube-dns's pod by a routed veth, even if the other pods are connected in another way.
func (n *Node) kubeDNS() {
	n.t.Helper()
	VethPair(n.t, n.Host, "kubedns0", n.KubeDNS, "eth0")
	for _, a := range n.KubeDNSAddrs() {
		gateway := n.pick(a.Is4(), netip.MustParseAddr("10.244.2.1"), netip.MustParseAddr("fd00:244:2::1"))
		n.Host.AddAddr("kubedns0", Host(gateway))
		n.Host.AddRoute(Host(a), netip.Addr{}, "kubedns0")
		n.routeByGateway(n.KubeDNS, Host(a), gateway)
	}
}

func (n *Node) external() {
	n.t.Helper()
	n.ExternalNS = n.ns("external")
	VethPair(n.t, n.Neighbour, "external0", n.ExternalNS, "eth0")
	for _, a := range n.ExternalAddrs() {
		gateway := n.pick(a.Is4(), netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:53::1"))
		n.Neighbour.AddAddr("external0", subnet(gateway))
		n.ExternalNS.AddAddr("eth0", subnet(a))
		n.ExternalNS.AddRoute(DefaultRoute(gateway), gateway, "eth0")
	}
}

// serve starts the scripted DNS servers.
func (n *Node) serve() {
	n.t.Helper()
	config := DNSConfig{Name: "KUBEDNS", Listen: port53(n.KubeDNSAddrs())}
	if n.options.External {
		n.External = ServeDNS(n.t, n.ExternalNS, DNSConfig{Name: "EXTERNAL", Listen: port53(n.ExternalAddrs())})
		config.Zones = []string{"cluster.local.", "in-addr.arpa.", "ip6.arpa."}
		config.Forward = netip.AddrPortFrom(n.ExternalAddrs()[0], 53)
	}
	n.DNS = ServeDNS(n.t, n.KubeDNS, config)
}

func port53(addrs []netip.Addr) []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range addrs {
		out = append(out, netip.AddrPortFrom(a, 53))
	}
	return out
}

func (n *Node) bridge() {
	n.t.Helper()
	n.Host.Bridge("cni0")
	for _, gateway := range n.Gateways() {
		n.Host.AddAddr("cni0", subnet(gateway))
	}
	n.setBridgeNF(n.Host, map[Attach]string{BridgeCNI: "0", BridgeNF: "1"}[n.options.Attach])
}

// setBridgeNF sets whether bridged packets pass iptables in a namespace. The kernel's default is 1, which means that they do.
func (n *Node) setBridgeNF(ns *NetNS, value string) {
	n.t.Helper()
	const key = "net.bridge.bridge-nf-call-"
	if !ns.HasSysctl(key + "iptables") {
		if value == "1" {
			n.t.Fatalf("this kernel has no br_netfilter: load the module, or ask RequireSysctl first for %siptables", key)
		}
		return
	}
	ns.Sysctl(key+"iptables", value)
	ns.Sysctl(key+"ip6tables", value)
}

// routeByGateway gives a pod's eth0 an address and routes as the reference ptp plugin does: a route on the link to the gateway, and routes
// through the gateway to all other addresses, even to those of the pod's subnet.
func (n *Node) routeByGateway(pod *NetNS, address netip.Prefix, gateway netip.Addr) {
	n.t.Helper()
	pod.AddAddr("eth0", address)
	pod.AddRoute(Host(gateway), netip.Addr{}, "eth0")
	pod.AddRoute(DefaultRoute(gateway), gateway, "eth0")
}

// String returns families, proxy mode and attachment of pods, as the name of a subtest.
func (o Options) String() string { return fmt.Sprintf("%s/%s/%s", o.Families, o.Proxy, o.Attach) }
