package steering

import (
	"net/netip"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// capture is how a service mesh takes a pod's DNS: in the nat table of the pod's own netns.
const capture = `table inet mesh {
	chain output {
		type nat hook output priority -100
		udp dport 53 redirect to :15053
		tcp dport 53 redirect to :15053
	}
}
`

// TestMeshCaptureWins: what a mesh captures in the pod never becomes ours, with the agent and without.
func TestMeshCaptureWins(t *testing.T) {
	t.Parallel()
	n := newNode(t, setup{families: testutil.Dual})
	p := n.addPod(nil)
	var listen []netip.AddrPort
	for _, a := range n.ClusterDNS() {
		listen = append(listen, netip.AddrPortFrom(map[bool]netip.Addr{true: netip.MustParseAddr("127.0.0.1"), false: netip.IPv6Loopback()}[a.Is4()], 15053))
	}
	testutil.ServeDNS(t, p.NetNS, testutil.DNSConfig{Name: "MESH", Listen: listen})
	p.RunInput(capture, "nft", "-f", "-")
	captured := func() {
		t.Helper()
		for _, at := range n.all() {
			testutil.WantWho(t, "MESH", p.NetNS, at.server(), freshName(), at.network)
		}
	}
	captured()
	n.startAgent()
	captured()
	p.Run("nft", "delete", "table", "inet", "mesh")
	n.wantSteered(p.client(), "no mesh any more", n.all()...)
}

// TestForwardedInsideThePod: a container or VM nested in the pod's netns is steered as the pod is, behind the pod's address or
// with one of its own.
func TestForwardedInsideThePod(t *testing.T) {
	for name, masquerade := range map[string]bool{"masqueraded": true, "routed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A bridge, since ptp's route to a pod serves as nobody's gateway (its scope is host).
			n := newNode(t, setup{families: testutil.Dual, proxy: testutil.IPTables, attach: testutil.BridgeNF})
			p := n.addPod(nil)
			c := n.nest(p, masquerade)
			cluster := targets(n.ClusterDNS()...)
			n.wantFallback(c, "never started", cluster...)
			n.startAgent()
			n.wantSteered(c, "up", cluster...)
			n.wantSteered(p.client(), "up, the pod itself", n.all()...)
			n.agent.Kill()
			n.wantFallback(c, "killed", cluster...)
		})
	}
}

// nest puts a netns behind the pod's.
func (n *node) nest(p *pod, masquerade bool) client {
	n.t.Helper()
	c := client{ns: testutil.NewNS(n.t, "nested"), own: p.addrs}
	testutil.VethPair(n.t, p.NetNS, "nest0", c.ns, "eth0")
	if !masquerade {
		c.own = nil
	}
	for _, own := range p.addrs {
		gateway, inner := netip.MustParseAddr("10.244.9.1"), netip.MustParseAddr("10.244.9.2")
		if !own.Is4() {
			gateway, inner = netip.MustParseAddr("fd00:244:9::1"), netip.MustParseAddr("fd00:244:9::2")
		}
		p.AddAddr("nest0", netip.PrefixFrom(gateway, gateway.BitLen()-8))
		c.ns.AddAddr("eth0", netip.PrefixFrom(inner, inner.BitLen()-8))
		c.ns.AddRoute(testutil.DefaultRoute(gateway), gateway, "eth0")
		if !masquerade {
			n.Host.AddRoute(testutil.Host(inner), own, "")
			c.own = append(c.own, inner)
		}
	}
	p.Sysctl("net.ipv4.ip_forward", "1")
	p.Sysctl("net.ipv6.conf.all.forwarding", "1")
	if masquerade {
		p.RunInput("table inet nest {\n chain post {\n type nat hook postrouting priority 100\n oifname \"eth0\" masquerade\n }\n}\n", "nft", "-f", "-")
	}
	n.awaitNetwork(c.ns)
	return c
}
