package hostnet_test

import (
	"cmp"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

var clusterDNS4, clusterDNS6 = addr("10.96.0.10"), addr("fd00:10:96::a")

var addr, must = netip.MustParseAddr, testutil.Must

// Way finds out from links, routes and neighbours whether the pod's packets enter this host, and leaves no descriptor open.
func TestWay(t *testing.T) {
	testutil.RequireRoot(t)
	type world struct{ host, pod, other *testutil.NetNS }
	veth := func(w *world) { testutil.VethPair(t, w.host, "veth1", w.pod, "eth0") }
	addrs := func(ns *testutil.NetNS, link string, prefixes ...string) {
		for _, p := range prefixes {
			ns.AddAddr(link, netip.MustParsePrefix(p))
		}
	}
	defaults := func(ns *testutil.NetNS, link string, gateways ...string) {
		for _, g := range gateways {
			ns.AddRoute(testutil.Host(addr(g)), netip.Addr{}, link)
			ns.AddRoute(testutil.DefaultRoute(addr(g)), addr(g), link)
		}
	}
	routed := func(w *world, gateways ...string) {
		veth(w)
		addrs(w.pod, "eth0", "10.244.1.5/32", "fd00:244::5/128")
		defaults(w.pod, "eth0", gateways...)
	}
	bridged := func(w *world) {
		veth(w)
		w.host.Bridge("cni0", "veth1")
		addrs(w.pod, "eth0", "10.244.1.5/24", "fd00:244::5/64")
		w.pod.AddRoute(testutil.DefaultRoute(addr("10.244.1.1")), addr("10.244.1.1"), "eth0")
		w.pod.AddRoute(testutil.DefaultRoute(addr("fd00:244::1")), addr("fd00:244::1"), "eth0")
	}
	for _, c := range []struct {
		name    string
		build   func(t *testing.T, w *world)
		entry   string // both families; "" means reason
		reason  string
		only4   bool
		reason6 string
	}{
		{name: "ptp", entry: "veth1", build: func(t *testing.T, w *world) {
			routed(w, "10.244.1.1", "fd00:244::1")
			addrs(w.host, "veth1", "10.244.1.1/32", "fd00:244::1/128")
		}},
		{name: "gateway on another of the host's links", entry: "veth1", build: func(t *testing.T, w *world) {
			routed(w, "10.244.1.1", "fd00:244::1")
			w.host.Bridge("br9")
			addrs(w.host, "br9", "10.244.1.1/32", "fd00:244::1/128")
		}},
		{name: "bridge", entry: "cni0", build: func(t *testing.T, w *world) {
			bridged(w)
			addrs(w.host, "cni0", "10.244.1.1/24", "fd00:244::1/64")
		}},
		{name: "bridge, gateway elsewhere", reason: "next hop 10.244.1.1 is not an address of this host", reason6: "next hop fd00:244::1 is not an address of this host", build: func(t *testing.T, w *world) {
			bridged(w)
			testutil.VethPair(t, w.host, "veth2", w.other, "eth0")
			w.host.Port("cni0", "veth2")
			addrs(w.other, "eth0", "10.244.1.1/24", "fd00:244::1/64")
		}},
		{name: "proxy ARP, link-local gateway", entry: "veth1", build: func(t *testing.T, w *world) {
			routed(w, "169.254.1.1", "fe80::ecee:eeff:feee:eeee")
			w.host.Sysctl("net.ipv4.conf.veth1.proxy_arp", "1")
			addrs(w.host, "veth1", "fe80::ecee:eeff:feee:eeee/64")
		}},
		{name: "proxy ARP everywhere", entry: "veth1", build: func(t *testing.T, w *world) {
			routed(w, "169.254.1.1", "fd00:9::1")
			w.host.Sysctl("net.ipv4.conf.all.proxy_arp", "1")
			w.host.Sysctl("net.ipv6.conf.all.proxy_ndp", "1")
		}},
		{name: "link-local gateway of another link", reason: "is not an address of this host", build: func(t *testing.T, w *world) {
			routed(w, "169.254.1.1", "fe80::1")
			w.host.Bridge("br9")
			addrs(w.host, "br9", "fe80::1/64")
		}},
		{name: "static neighbour", entry: "veth1", build: func(t *testing.T, w *world) { // as the AWS VPC CNI does
			routed(w, "169.254.1.1", "fe80::1234")
			mac := w.host.Link("veth1").Attrs().HardwareAddr.String()
			w.pod.Run("ip", "neigh", "replace", "169.254.1.1", "lladdr", mac, "dev", "eth0", "nud", "permanent")
			w.pod.Run("ip", "neigh", "replace", "fe80::1234", "lladdr", mac, "dev", "eth0", "nud", "permanent")
		}},
		{name: "static neighbour that is another machine", reason: "next hop 169.254.1.1 is not an address of this host", reason6: "is not an address of this host", build: func(t *testing.T, w *world) {
			routed(w, "169.254.1.1", "fe80::1234")
			w.pod.Run("ip", "neigh", "replace", "169.254.1.1", "lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent")
			w.pod.Run("ip", "neigh", "replace", "fe80::1234", "lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent")
		}},
		{name: "IPv4 over an IPv6 next hop", entry: "veth1", only4: true, build: func(t *testing.T, w *world) {
			routed(w)
			addrs(w.host, "veth1", "fe80::77/64")
			w.pod.Run("ip", "-4", "route", "add", "default", "via", "inet6", "fe80::77", "dev", "eth0")
		}},
		{name: "vrf", entry: "veth1", build: func(t *testing.T, w *world) {
			veth(w)
			addLink(t, w.host, "red", "type", "vrf", "table", "10")
			w.host.Up("red")
			w.host.Port("red", "veth1")
			addrs(w.host, "veth1", "10.244.1.1/24", "fd00:244::1/64")
			addrs(w.pod, "eth0", "10.244.1.5/24", "fd00:244::5/64")
			defaults(w.pod, "eth0", "10.244.1.1", "fd00:244::1")
		}},
		{name: "macvlan", reason: "leaves by eth0, a macvlan link, not by a veth into this host", build: func(t *testing.T, w *world) {
			testutil.VethPair(t, w.host, "up0", w.other, "eth0")
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.ParentIndex, attrs.Namespace = "eth0", w.host.Link("up0").Attrs().Index, netlink.NsFd(w.pod.FD())
			must(t, w.host.Netlink().LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}))
			w.pod.NoDAD("eth0")
			w.pod.Up("eth0")
			addrs(w.pod, "eth0", "10.244.1.5/24", "fd00:244::5/64")
			defaults(w.pod, "eth0", "10.244.1.1", "fd00:244::1")
		}},
		{name: "peer in another namespace", reason: "the peer of eth0 is not in this host's netns", build: func(t *testing.T, w *world) {
			testutil.VethPair(t, w.other, "veth1", w.pod, "eth0")
			addrs(w.pod, "eth0", "10.244.1.5/24", "fd00:244::5/64")
			defaults(w.pod, "eth0", "10.244.1.1", "fd00:244::1")
		}},
		{name: "peer in another namespace, of an index that the host has too", reason: "the peer of eth0 is not in this host's netns", build: func(t *testing.T, w *world) {
			testutil.VethPair(t, w.other, "veth1", w.pod, "eth0")
			testutil.VethPair(t, w.host, "veth1", testutil.NewNS(t, "third"), "eth0") // same indexes on both ends
			addrs(w.host, "veth1", "10.244.1.1/24", "fd00:244::1/64")
			addrs(w.pod, "eth0", "10.244.1.5/24", "fd00:244::5/64")
			defaults(w.pod, "eth0", "10.244.1.1", "fd00:244::1")
		}},
		{name: "on-link", reason: "on the link itself, and veth1 does no proxy ARP", build: func(t *testing.T, w *world) {
			routed(w)
			w.pod.Run("ip", "route", "add", "default", "dev", "eth0")
			w.pod.Run("ip", "-6", "route", "add", "default", "dev", "eth0")
		}},
		{name: "no route", reason: "the pod has no route to", build: func(t *testing.T, w *world) { veth(w) }},
		{name: "blackhole", reason: "the pod", build: func(t *testing.T, w *world) {
			veth(w)
			w.pod.Run("ip", "route", "add", "blackhole", "10.96.0.0/12")
			w.pod.Run("ip", "-6", "route", "add", "blackhole", "fd00:10:96::/112")
		}},
		{name: "the pod holds the address itself", reason: "the pod", build: func(t *testing.T, w *world) {
			veth(w)
			addrs(w.pod, "eth0", "10.96.0.10/32", "fd00:10:96::a/128")
		}},
		{name: "by a second link", entry: "veth2", build: func(t *testing.T, w *world) {
			testutil.VethPair(t, w.other, "x", w.pod, "eth0")
			testutil.VethPair(t, w.host, "veth2", w.pod, "net1")
			addrs(w.host, "veth2", "10.9.0.1/24", "fd00:9::1/64")
			addrs(w.pod, "net1", "10.9.0.5/24", "fd00:9::5/64")
			w.pod.AddRoute(netip.MustParsePrefix("10.96.0.0/12"), addr("10.9.0.1"), "net1")
			w.pod.AddRoute(netip.MustParsePrefix("fd00:10:96::/112"), addr("fd00:9::1"), "net1")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{testutil.NewNS(t, "host"), testutil.NewNS(t, "pod"), testutil.NewNS(t, "other")}
			for _, ns := range []*testutil.NetNS{w.host, w.other} {
				ns.Sysctl("net.ipv4.ip_forward", "1")
				ns.Sysctl("net.ipv6.conf.all.forwarding", "1")
			}
			c.build(t, w)
			for _, r := range []netip.Addr{clusterDNS4, clusterDNS6} {
				if !r.Is4() && c.only4 {
					continue
				}
				reason := c.reason
				if !r.Is4() {
					reason = cmp.Or(c.reason6, c.reason)
				}
				entry, err := hostnet.Way(w.pod.FD(), w.host.FD(), r)
				var way *hostnet.WayError
				switch {
				case reason == "" && err != nil:
					t.Errorf("%s: %v", r, err)
				case reason != "" && (!errors.As(err, &way) || !strings.Contains(err.Error(), reason)):
					t.Errorf("%s: %q, %v; want a *WayError with %q", r, entry, err, reason)
				case entry != c.entry:
					t.Errorf("%s: enters by %q, want %q", r, entry, c.entry)
				}
			}
			const calls = 50 // more than what the rest of the process opens meanwhile
			before := testutil.OpenFiles(t)
			for range calls {
				_, _ = hostnet.Way(w.pod.FD(), w.host.FD(), clusterDNS4)
			}
			if after := testutil.OpenFiles(t); after >= before+calls {
				t.Errorf("%d descriptors before, %d after %d calls", before, after, calls)
			}
		})
	}
}

// If the path cannot be determined, the error is not a *WayError, which the plugin would record as the reason for not steering the pod.
func TestWayThatCannotBeTold(t *testing.T) {
	testutil.RequireRoot(t)
	null, err := os.Open(os.DevNull)
	must(t, err)
	defer func() { _ = null.Close() }()
	ns := testutil.NewNS(t, "host")
	for _, fds := range [][2]int{{int(null.Fd()), ns.FD()}, {ns.FD(), int(null.Fd())}} {
		_, err := hostnet.Way(fds[0], fds[1], clusterDNS4)
		var way *hostnet.WayError
		if err == nil || errors.As(err, &way) {
			t.Errorf("a descriptor that is no namespace: %v", err)
		}
	}
}

// addLink adds a link of a kind that not every kernel has; t is the test to skip.
func addLink(t *testing.T, ns *testutil.NetNS, name string, options ...string) {
	t.Helper()
	_, err := ns.TryRun("", append([]string{"ip", "link", "add", "name", name}, options...)...)
	if err != nil && (strings.Contains(err.Error(), "Unknown device type") || strings.Contains(err.Error(), "not supported")) {
		testutil.Skip(t, "this kernel has no link like "+name)
	}
	must(t, err)
}

func TestUplinks(t *testing.T) {
	testutil.RequireRoot(t)
	for _, c := range []struct {
		name    string
		build   func(t *testing.T, ns, other *testutil.NetNS)
		podSide []string
		want    string
	}{
		{name: "nothing", build: func(*testing.T, *testutil.NetNS, *testutil.NetNS) {}},
		{name: "pods' veths and bridges", build: func(t *testing.T, ns, other *testutil.NetNS) {
			testutil.VethPair(t, ns, "veth1", other, "a")
			testutil.VethPair(t, ns, "veth2", other, "b")
			ns.Bridge("cni0", "veth2")
			ns.Bridge("neardns0")
			testutil.VethPair(t, ns, steer.ProberInterface, other, "c")
		}},
		{name: "the turn, which has a default route of its own", build: func(t *testing.T, ns, _ *testutil.NetNS) {
			testutil.VethPair(t, ns, steer.HairpinOut, ns, steer.HairpinIn)
			ns.Run("ip", "route", "add", "default", "dev", steer.HairpinIn, "table", "5354")
		}},
		{name: "default route of IPv4", want: "eth0", build: func(t *testing.T, ns, other *testutil.NetNS) {
			testutil.VethPair(t, ns, "eth0", other, "a")
			testutil.VethPair(t, ns, "veth1", other, "b")
			ns.AddAddr("eth0", netip.MustParsePrefix("192.0.2.2/24"))
			ns.AddRoute(testutil.DefaultRoute(addr("192.0.2.1")), addr("192.0.2.1"), "eth0")
		}},
		{name: "default route of IPv6, in another table", want: "eth0", build: func(t *testing.T, ns, other *testutil.NetNS) {
			testutil.VethPair(t, ns, "eth0", other, "a")
			ns.AddAddr("eth0", netip.MustParsePrefix("2001:db8::2/64"))
			ns.Run("ip", "-6", "route", "add", "default", "via", "2001:db8::1", "dev", "eth0", "table", "100")
		}},
		{name: "two ways out", want: "eth0 eth1", build: func(t *testing.T, ns, other *testutil.NetNS) {
			for i, l := range []string{"eth0", "eth1"} {
				testutil.VethPair(t, ns, l, other, l)
				ns.AddAddr(l, netip.MustParsePrefix([]string{"192.0.2.2/24", "198.51.100.2/24"}[i]))
			}
			ns.Run("ip", "route", "add", "default", "nexthop", "via", "192.0.2.1", "dev", "eth0", "nexthop", "via", "198.51.100.1", "dev", "eth1")
		}},
		{name: "a default route that leads nowhere", build: func(t *testing.T, ns, other *testutil.NetNS) {
			testutil.VethPair(t, ns, "veth1", other, "a")
			ns.Run("ip", "route", "add", "blackhole", "default")
			ns.Run("ip", "-6", "route", "add", "unreachable", "default")
		}},
		{name: "a VLAN, and what it stands on", want: "eth0 eth0.5", build: func(t *testing.T, ns, other *testutil.NetNS) {
			testutil.VethPair(t, ns, "eth0", other, "a")
			addLink(t, ns, "eth0.5", "link", "eth0", "type", "vlan", "id", "5")
		}},
		{name: "other kinds of link", want: "vx0", build: func(t *testing.T, ns, other *testutil.NetNS) {
			testutil.VethPair(t, ns, "eth0", other, "a")
			ns.Run("ip", "link", "add", "link", "eth0", "name", "mv0", "type", "macvlan")
			ns.Run("ip", "link", "add", "vx0", "type", "vxlan", "id", "7", "dstport", "4789", "local", "127.0.0.1")
		}},
		{name: "a bridge with an uplink as port", want: "br0 eth0 vx0", build: func(t *testing.T, ns, other *testutil.NetNS) {
			testutil.VethPair(t, ns, "eth0", other, "a")
			ns.Run("ip", "link", "add", "vx0", "type", "vxlan", "id", "7", "dstport", "4789", "local", "127.0.0.1")
			ns.Bridge("br0", "vx0", "eth0")
			ns.Bridge("cni0")
			ns.AddAddr("eth0", netip.MustParsePrefix("192.0.2.2/24"))
			ns.AddRoute(testutil.DefaultRoute(addr("192.0.2.1")), addr("192.0.2.1"), "eth0")
		}},
		{name: "known to carry pods", podSide: []string{"br0"}, want: "eth0", build: func(t *testing.T, ns, other *testutil.NetNS) {
			testutil.VethPair(t, ns, "eth0", other, "a")
			ns.Bridge("br0", "eth0")
			ns.AddAddr("br0", netip.MustParsePrefix("192.0.2.2/24"))
			ns.AddRoute(testutil.DefaultRoute(addr("192.0.2.1")), addr("192.0.2.1"), "br0")
			ns.AddRoute(netip.MustParsePrefix("198.51.100.0/24"), netip.Addr{}, "eth0")
			ns.Run("ip", "route", "add", "default", "dev", "eth0", "table", "7")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := testutil.NewNS(t, "host")
			c.build(t, ns, testutil.NewNS(t, "other"))
			var got []string
			var err error
			ns.Do(func() { got, err = rules.Uplinks(c.podSide...) })
			if err != nil || strings.Join(got, " ") != c.want {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
}
