package nft_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/rig"
)

// A service mesh that captures DNS in the pod's nat OUTPUT takes precedence, and its own upstream queries are steered.
func TestMeshCaptureWins(t *testing.T) {
	mode(t, testutil.IPTables, func(t *testing.T, o testutil.Options) {
		r := newRig(t, o)
		pod := r.Steered("pod")
		// The rules recognize the mesh's upstream queries by their source port; those of a real mesh do so by the user. The kernel gives
		// this port to no other query.
		const own = 15045
		for _, tool := range []string{"iptables", "ip6tables"} {
			for _, network := range rig.Networks() {
				pod.Run(tool, "-t", "nat", "-A", "OUTPUT", "-p", network, "--dport", "53", "!", "--sport", fmt.Sprint(own), "-j", "REDIRECT", "--to-ports", "15053")
			}
		}
		mesh := testutil.ServeDNS(t, pod.NetNS, testutil.DNSConfig{Name: "MESH", Listen: []netip.AddrPort{
			netip.MustParseAddrPort("127.0.0.1:15053"), netip.MustParseAddrPort("[::1]:15053")}})
		upstream := func(who string) {
			t.Helper()
			for _, s := range r.ClusterDNS() {
				for _, network := range rig.Networks() {
					o := testutil.AskOptions{Source: netip.AddrPortFrom(netip.Addr{}, own), Abort: true}
					by(t, who, "the mesh's own query to %s over %s", s, network)(testutil.Ask(pod.NetNS, s, "a.cluster.local", dns.TypeTXT, network, o))
				}
			}
		}
		r.Want("MESH", pod.NetNS, "no agent", r.ClusterDNS()...)
		upstream("KUBEDNS")
		r.Serve()
		r.Want("MESH", pod.NetNS, "lease", r.ClusterDNS()...)
		upstream("AGENT")
		if mesh.Questions("") == 0 || r.Agent.Questions("") != 4 {
			t.Errorf("mesh asked %d times, agent %d", mesh.Questions(""), r.Agent.Questions(""))
		}
	})
}

// A namespace inside the pod (nested containers, a VM), behind the pod's own masquerading, is steered with it.
func TestNestedNamespaceIsSteered(t *testing.T) {
	mode(t, testutil.NFTables, func(t *testing.T, o testutil.Options) {
		r := newRig(t, o)
		pod := r.Steered("pod")
		inner := testutil.NewNS(t, "inner")
		testutil.VethPair(t, pod.NetNS, "inner0", inner, "eth0")
		pod.Sysctl("net.ipv4.ip_forward", "1")
		pod.Sysctl("net.ipv6.conf.all.forwarding", "1")
		for _, c := range []struct{ tool, pod, inner, gateway, source string }{
			{"iptables", "172.30.0.1/24", "172.30.0.2/24", "172.30.0.1", "172.30.0.0/24"},
			{"ip6tables", "fd00:30::1/64", "fd00:30::2/64", "fd00:30::1", "fd00:30::/64"},
		} {
			pod.AddAddr("inner0", netip.MustParsePrefix(c.pod))
			inner.AddAddr("eth0", netip.MustParsePrefix(c.inner))
			inner.AddRoute(testutil.DefaultRoute(addr(c.gateway)), addr(c.gateway), "eth0")
			pod.Run(c.tool, "-t", "nat", "-A", "POSTROUTING", "-s", c.source, "-o", "eth0", "-j", "MASQUERADE")
		}
		inner.Settle("eth0")
		pod.NetNS.Settle("inner0")
		r.Want("KUBEDNS", inner, "no agent", append(r.ClusterDNS(), r.Local()...)...)
		r.Serve()
		r.Want("AGENT", inner, "lease", append(r.ClusterDNS(), r.Local()...)...)
		kept := r.dial(inner, r.ClusterDNS()...)
		kept.want("AGENT", "lease")
		r.Withdraw()
		r.drain()
		r.Want("KUBEDNS", inner, "withdrawn", append(r.ClusterDNS(), r.Local()...)...)
		kept.want("AGENT", "withdrawn, drain")
	})
}

// Reverse path filtering, policy routing by source, a small MTU, and no accept_local: all as on real nodes.
func TestOddNodes(t *testing.T) {
	for what, change := range map[string]func(*nftRig, *testutil.Pod){
		"rp_filter": func(r *nftRig, _ *testutil.Pod) {
			for _, where := range []string{"all", "default"} {
				r.Node.Host.Sysctl("net.ipv4.conf."+where+".rp_filter", "1")
			}
		},
		"policy routing": func(r *nftRig, pod *testutil.Pod) {
			for i, a := range pod.Addrs {
				kubeDNS := r.Node.KubeDNSAddrs()[i]
				via := map[bool]string{true: "192.0.2.1", false: "2001:db8::1"}[a.Is4()]
				r.Node.Host.Run("ip", family(a), "rule", "add", "from", a.String(), "lookup", "100")
				r.Node.Host.Run("ip", family(a), "route", "add", kubeDNS.String(), "dev", "kubedns0", "table", "100")
				r.Node.Host.Run("ip", family(a), "route", "add", "default", "via", via, "table", "100")
			}
		},
		"mtu": func(r *nftRig, pod *testutil.Pod) {
			pod.Run("ip", "link", "set", "eth0", "mtu", "1400")
			r.Node.Host.Run("ip", "link", "set", pod.HostInterface, "mtu", "1400")
		},
		"invalid dropped": func(r *nftRig, _ *testutil.Pod) {
			r.Node.Host.RunInput(`table inet strict {
				chain i { type filter hook input priority 0; ct state invalid drop; }
				chain f { type filter hook forward priority 0; ct state invalid drop; }
				chain o { type filter hook output priority 0; ct state invalid drop; }
			}`, "nft", "-f", "-")
		},
		"forwarding of pods only": func(r *nftRig, pod *testutil.Pod) {
			r.Node.Host.RunInput(fmt.Sprintf(`table inet strict { chain f { type filter hook forward priority 0; policy drop;
				ct state established,related accept; iifname %q accept; }; }`, pod.HostInterface), "nft", "-f", "-")
		},
	} {
		t.Run(what, func(t *testing.T) {
			mode(t, testutil.NFTables, func(t *testing.T, o testutil.Options) {
				r := newRig(t, o)
				pod := r.Steered("pod")
				change(r, pod)
				all := append(r.ClusterDNS(), r.Local()...)
				r.Want("KUBEDNS", pod.NetNS, "no agent", all...)
				r.Serve()
				r.Want("AGENT", pod.NetNS, "lease", all...)
				for _, s := range all {
					for _, network := range rig.Networks() {
						by(t, "AGENT", "3 kB over %s", network)(
							testutil.Ask(pod.NetNS, s, "size-3000.cluster.local", dns.TypeTXT, network, testutil.AskOptions{EDNS: 4096}))
					}
				}
				r.Withdraw()
				r.Want("KUBEDNS", pod.NetNS, "withdrawn", all...)
				by(t, "KUBEDNS", "60 kB over tcp")(
					testutil.Ask(pod.NetNS, all[1], "size-60000.cluster.local", dns.TypeTXT, "tcp", testutil.AskOptions{}))
			})
		})
	}
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "-4"
	}
	return "-6"
}

// If kube-dns is on the same bridge as the querying pod, and br_netfilter is 1, queries are answered with and without hairpin mode, and
// each query is counted once. (With br_netfilter 0, the fallback would fail, as kube-proxy does without neardns.)
func TestKubeDNSOnTheSameBridge(t *testing.T) {
	for _, hairpin := range []string{"off", "on"} {
		t.Run("hairpin "+hairpin, func(t *testing.T) {
			for _, proxy := range []testutil.ProxyMode{testutil.IPTables, testutil.NFTables} {
				r := newRig(t, testutil.Options{Families: testutil.Dual, Proxy: proxy, Attach: testutil.BridgeNF})
				pod, server := r.Steered("pod"), r.Pod("kube-dns")
				var listen []netip.AddrPort
				var services []testutil.Service
				for i, a := range server.Addrs {
					listen = append(listen, netip.AddrPortFrom(a, 53))
					services = append(services, testutil.DNSService(r.Node.ClusterDNS()[i], a)...)
				}
				testutil.ServeDNS(t, server.NetNS, testutil.DNSConfig{Name: "NEIGHBOUR", Listen: listen})
				r.Node.Proxy.Set(services...)
				for _, p := range []*testutil.Pod{pod, server} {
					r.Node.Host.Run("bridge", "link", "set", "dev", p.HostInterface, "hairpin", hairpin)
				}
				all := append(r.ClusterDNS(), r.Local()...)
				counted := func(who, when, counter string) {
					t.Helper()
					before, err := r.nft.Counters()
					must(t, err)
					r.Want(who, pod.NetNS, when, all...)
					after, err := r.nft.Counters()
					must(t, err)
					testutil.Equal(t, counter, uint64(len(all)), after[counter].Packets-before[counter].Packets)
				}
				counted("NEIGHBOUR", "no agent", steer.CounterFallbackUDP)
				r.Serve()
				counted("AGENT", "lease", steer.CounterDeliveredUDP)
				r.Kill()
				r.Want("NEIGHBOUR", pod.NetNS, "killed", all...)
			}
		})
	}
}

// Queries race with renewals; none is lost and kube-dns gets none: the set update is atomic.
func TestRenewalsUnderLoad(t *testing.T) {
	r := newRig(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables, Attach: testutil.PTP})
	pod := r.Steered("pod")
	r.Serve()
	var asked errgroup.Group
	for i := range 4 {
		asked.Go(func() error {
			server := r.ClusterDNS()[i%2]
			c, err := testutil.Dial(pod.NetNS, "udp", server, testutil.AskOptions{})
			if err != nil {
				return err
			}
			defer c.Close()
			for n := range 500 {
				for _, a := range r.Ours() {
					if err := errors.Join(r.Lease.Renew(a, steer.UDP), r.Lease.Renew(a, steer.TCP)); err != nil {
						return err
					}
				}
				answer, err := c.Ask("a.cluster.local", dns.TypeA)
				if err != nil || answer.Who != "AGENT" {
					return fmt.Errorf("query %d: %v, %w", n, answer, err)
				}
			}
			return nil
		})
	}
	testutil.Check(t, asked.Wait())
}
