package nft_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/rig"
)

// If a pod sends queries from a neighbour's address, or from one that belongs to no pod, they go to kube-dns, as without neardns, and
// are not recorded. The neighbour is not affected.
func TestForgedSourceIsNeitherServedNorNoted(t *testing.T) {
	for attach, intercept := range map[testutil.Attach]bool{testutil.PTP: false, testutil.ProxyARP: true} {
		t.Run(fmt.Sprintf("%s/intercept=%t", attach, intercept), func(t *testing.T) {
			r := newRig(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables, Attach: attach}, func(h *steer.Host) { h.InterceptNode = intercept })
			victim, thief := r.Steered("victim"), r.Steered("thief")
			for _, where := range []string{"all", "default", thief.HostInterface} {
				r.Node.Host.Sysctl("net.ipv4.conf."+where+".rp_filter", "0")
			}
			all := append(r.ClusterDNS(), r.Local()...)
			r.Serve()
			r.Want("AGENT", victim.NetNS, "the neighbour", all...)
			r.Want("AGENT", thief.NetNS, "in its own name", all...)

			sources := append(append([]netip.Addr{}, victim.Addrs...), addr("10.244.1.77"), addr("172.30.0.2"), addr("fd00:30::2"))
			for _, a := range append(sources[:len(sources):len(sources)], unroutable()...) {
				thief.AddAddr("eth0", testutil.Host(a))
			}
			forget(r)
			if intercept {
				r.Node.Host.Run("nft", "flush set inet neardns direct4; flush set inet neardns direct6")
			}
			var forged sync.WaitGroup
			for _, source := range append(sources, unroutable()...) {
				for _, server := range all {
					if server.Addr().Is4() == source.Is4() {
						forged.Go(func() { forge(thief.NetNS, source, server) })
					}
				}
			}
			forged.Wait()
			// All of them are sent; the last has passed the switch once kube-dns got that many.
			testutil.Eventually(t, func() error {
				return testutil.ErrorIf(r.Node.DNS.Asked("forged.cluster.local.") < len(sources), "not at kube-dns")
			})
			if n := r.Agent.Questions(""); n > 0 {
				t.Errorf("%d forged questions were served: %v", n, r.Agent.Log())
			}
			notes, err := r.nft.Notes()
			must(t, err)
			if len(notes.Delivered) > 0 {
				t.Errorf("noted: %v", notes.Delivered)
			}
			if intercept {
				// The neighbour is recorded by itself: it resets the connections that it did not open.
				for family, source := range map[string]string{"4": "172.30.0.2", "6": "fd00:30::2"} {
					if set := r.Node.Host.Run("nft", "list", "set", "inet", "neardns", "direct"+family); strings.Contains(set, source+" ") {
						t.Errorf("recorded: %s", set)
					}
				}
			}
			counters, err := r.nft.Counters()
			must(t, err)
			if refused := counters[steer.CounterStranger].Packets; refused < uint64(2*len(sources)) {
				t.Errorf("%d counted as refused", refused)
			}
			r.Want("AGENT", victim.NetNS, "the neighbour, afterwards", all...)
			for _, a := range append(sources, unroutable()...) {
				thief.DelAddr("eth0", testutil.Host(a))
			}
			// Forged queries have no answer at the pod, so it bypasses the agent after podTrust (TestBypass), which is not the matter here.
			thief.Run("nft", "flush", "set", "inet", steer.TableName, "waiting1")
			r.Want("AGENT", thief.NetNS, "in its own name, afterwards", all...)
		})
	}
}

// unroutable are sources of which the host knows nothing but its default route.
func unroutable() []netip.Addr {
	return []netip.Addr{addr("203.0.113.9"), addr("2001:db8:9::9")}
}

// forge sends queries over both protocols from another pod's address, to which any answer would go.
func forge(from *testutil.NetNS, source netip.Addr, server netip.AddrPort) {
	for _, network := range rig.Networks() {
		_, _ = testutil.Ask(from, server, "forged.cluster.local", dns.TypeTXT, network,
			testutil.AskOptions{Timeout: testutil.Silence, Source: netip.AddrPortFrom(source, 0)})
	}
}

// forget clears the agent's log, the records and the counters.
func forget(r *nftRig) {
	r.Agent.Forget()
	for _, set := range []string{"asked4", "asked6", "heard4", "heard6"} {
		r.Node.Host.Run("nft", "flush", "set", "inet", "neardns", set)
	}
	r.Node.Host.Run("nft", "reset", "counters", "table", "inet", "neardns")
}

// Addresses that are routed to a pod's link are served there.
func TestRoutedBehindAPodIsServed(t *testing.T) {
	r := newRig(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables, Attach: testutil.ProxyARP})
	pod := r.Steered("pod")
	for _, a := range []netip.Addr{addr("172.30.0.2"), addr("fd00:30::2")} {
		pod.AddAddr("eth0", testutil.Host(a))
		r.Node.Host.AddRoute(testutil.Host(a), pod.Addr(a.Is4()), pod.HostInterface)
	}
	r.Serve()
	for _, server := range append(r.ClusterDNS(), r.Local()...) {
		source := map[bool]netip.Addr{true: addr("172.30.0.2"), false: addr("fd00:30::2")}[server.Addr().Is4()]
		for _, network := range rig.Networks() {
			o := testutil.AskOptions{Source: netip.AddrPortFrom(source, 0)}
			by(t, "AGENT", "%s over %s", server, network)(testutil.Ask(pod.NetNS, server, "a.cluster.local", dns.TypeTXT, network, o))
		}
	}
}

// On some nodes all pods' addresses are routed to one link, where a program passes the packets on to the pods (Cilium's cilium_host). The
// routes then do not show by which link a pod's packets come, and pods are served all the same.
func TestPodsBehindADetour(t *testing.T) {
	r := newRig(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables, Attach: testutil.ProxyARP})
	pod := r.Steered("pod")
	host := r.Node.Host
	testutil.VethPair(t, host, "detour0", host, "detour1")
	for _, where := range []string{"all", "detour0", "detour1", pod.HostInterface} {
		host.Sysctl("net.ipv4.conf."+where+".rp_filter", "0")
	}
	host.Sysctl("net.ipv4.conf.detour1.accept_local", "1")
	mac := host.Link("detour1").Attrs().HardwareAddr.String()
	for _, a := range pod.Addrs { // here, a routing table does what the program would
		host.Run("ip", family(a), "rule", "add", "iif", "detour1", "lookup", "77")
		host.Run("ip", family(a), "route", "add", a.String(), "dev", pod.HostInterface, "table", "77")
		host.Run("ip", family(a), "route", "del", a.String(), "dev", pod.HostInterface)
		host.Run("ip", "neigh", "replace", a.String(), "lladdr", mac, "dev", "detour0", "nud", "permanent")
		host.AddRoute(testutil.Host(a), netip.Addr{}, "detour0")
	}
	all := append(r.ClusterDNS(), r.Local()...)
	r.Serve()
	for _, server := range all {
		_, _ = testutil.Ask(pod.NetNS, server, "a.cluster.local", dns.TypeTXT, "udp", testutil.AskOptions{Timeout: testutil.Silence})
	}
	counters, err := r.nft.Counters()
	must(t, err)
	if n := counters[steer.CounterStranger].Packets; n < uint64(len(all)) {
		t.Fatalf("%d questions refused: there is no detour", n)
	}
	must(t, r.nft.Apply(r.Host)) // from now on the table allows for the detour
	r.Want("AGENT", pod.NetNS, "served", all...)
	must(t, r.nft.Verify(r.Host))
}

// attachBy attaches a pod to the host by another kind of link than a veth or bridge. The keys are the names of such links of CNI
// plugins.
var attachBy = map[string]func(t *testing.T, r *nftRig, pod *testutil.Pod){
	"antrea-gw0": func(t *testing.T, r *nftRig, pod *testutil.Pod) { // a port of Open vSwitch, as far as a macvlan end shows it
		testutil.VethPair(t, r.Node.Host, "lower0", pod.NetNS, "eth0")
		r.Node.Host.Run("ip", "link", "add", "link", "lower0", "name", "antrea-gw0", "type", "macvlan", "mode", "private")
		r.Node.Host.Sysctl("net.ipv4.conf.lower0.arp_ignore", "1")
		r.Node.Host.NoDAD("antrea-gw0")
		r.Node.Host.Up("antrea-gw0")
	},
	"ovn-k8s-mp0": func(t *testing.T, r *nftRig, pod *testutil.Pod) { // without any link layer, as tun and some netkit modes
		tunnel(t, r.Node.Host, "ovn-k8s-mp0", pod.NetNS, "eth0")
	},
	"ovn0": func(t *testing.T, r *nftRig, pod *testutil.Pod) {
		testutil.VethPair(t, r.Node.Host, "ovn0", pod.NetNS, "eth0")
	},
}

// Pods are served on every kind of link, in node-cache mode and if they are steered. If a link also leads away from the node, kube-dns
// answers them.
func TestPodsByAnyKindOfLink(t *testing.T) {
	for name, attach := range attachBy {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables, Attach: testutil.NoneAttach})
			pod := r.Node.AddPod("pod")
			attach(t, r, pod)
			for _, p := range []struct{ pod, gateway string }{{"10.244.1.5", "10.244.1.1"}, {"fd00:244:1::5", "fd00:244:1::1"}} {
				pod.AddAddr("eth0", testutil.Host(addr(p.pod)))
				r.Node.Host.AddAddr(name, testutil.Host(addr(p.gateway)))
				r.Node.Host.AddRoute(testutil.Host(addr(p.pod)), netip.Addr{}, name)
				pod.AddRoute(testutil.Host(addr(p.gateway)), netip.Addr{}, "eth0")
				pod.AddRoute(testutil.DefaultRoute(addr(p.gateway)), addr(p.gateway), "eth0")
			}
			r.Steer(pod.NetNS)
			r.Serve()
			all := append(r.ClusterDNS(), r.Local()...)
			for _, role := range []string{"node", "nodecache"} {
				h := r.Host
				asked := all
				if role == "nodecache" {
					h.Redirects, h.OwnLocals = nil, true
					asked = r.Local()
				}
				var err error
				r.Node.Host.Do(func() { h.Uplinks, err = rules.Uplinks() })
				must(t, err)
				must(t, r.nft.Apply(h))
				for _, a := range rules.Addresses(h) {
					must(t, errors.Join(r.Lease.Renew(a, steer.UDP), r.Lease.Renew(a, steer.TCP)))
				}
				r.Want("AGENT", pod.NetNS, role, asked...)
				h.Uplinks = append(h.Uplinks, name)
				must(t, r.nft.Apply(h))
				r.Want("KUBEDNS", pod.NetNS, role+", the link leads away as well", asked...)
				must(t, r.nft.Apply(r.Host))
			}
		})
	}
}

// tunnel joins two namespaces by a tun device in each, and carries packets between them until the test ends.
func tunnel(t *testing.T, a *testutil.NetNS, aName string, b *testutil.NetNS, bName string) {
	t.Helper()
	ends := [2]*os.File{openTun(t, a, aName), openTun(t, b, bName)}
	for i, from := range ends {
		to := ends[1-i]
		go func() {
			buf := make([]byte, 65536)
			for {
				n, err := from.Read(buf)
				if err != nil {
					return // closed
				}
				_, _ = to.Write(buf[:n])
			}
		}()
	}
}

func openTun(t *testing.T, ns *testutil.NetNS, name string) *os.File {
	t.Helper()
	var f *os.File
	ns.Do(func() {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err == nil {
			var req *unix.Ifreq
			if req, err = unix.NewIfreq(name); err == nil {
				req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
				err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
			}
		}
		if err != nil {
			testutil.Skip(t, "no tun devices here: "+strings.TrimSpace(err.Error()))
		}
		f = os.NewFile(uintptr(fd), name)
	})
	t.Cleanup(func() { _ = f.Close() })
	ns.NoDAD(name)
	ns.Up(name)
	return f
}

// The switch looks at the routes again every few seconds, however many queries a source sends: a query does not
// extend an element of the set home.
func TestHomesAreLookedAtAgain(t *testing.T) {
	r := newRig(t, testutil.Options{Families: testutil.IPv4, Proxy: testutil.NFTables, Attach: testutil.PTP})
	pod := r.Steered("pod")
	r.Serve()
	known := func() string {
		r.Want("AGENT", pod.NetNS, "its own source", r.ClusterDNS()...)
		return r.Node.Host.Run("nft", "list", "set", "inet", "neardns", "home4")
	}
	if got := known(); !strings.Contains(got, fmt.Sprintf("%q . %s", pod.HostInterface, pod.Addr(true))) {
		t.Fatalf("not remembered:\n%s", got)
	}
	// Any time left below 4 s will do: a busy machine may list the set seconds late.
	old := regexp.MustCompile(`expires ([0-3]s|[0-9]+ms)`)
	testutil.Eventually(t, func() error {
		got := known()
		return testutil.ErrorIf(!old.MatchString(got), "renewed by each question:\n%s", got)
	})
}
