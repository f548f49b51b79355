package iptables_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// upstream is a second Service's address for each family, as kube-dns-upstream of NodeLocal DNSCache.
func upstream(is4 bool) netip.Addr {
	if is4 {
		return addr("10.96.0.11")
	}
	return addr("fd00:10:96::b")
}

// nodecache makes of the rig what a NodeLocal DNSCache has: local and cluster DNS addresses on one link, no redirects, a
// second Service behind. What others bind there is theirs.
func nodecache(h *steer.Host) {
	for i := range h.Locals {
		h.Locals[i].ClusterDNS = upstream(h.Locals[i].Address.Is4())
	}
	for _, r := range h.Redirects {
		h.Locals = append(h.Locals, steer.Local{Address: r.ClusterDNS, ClusterDNS: upstream(r.Is4()), Service: true})
	}
	for _, l := range h.Locals {
		h.Ceded = append(h.Ceded, l.Address)
	}
	h.Redirects, h.OwnLocals = nil, true
}

// localsAlone is the same where kube-proxy is in IPVS mode and has the cluster DNS address itself: the manifest leaves it out.
func localsAlone(h *steer.Host) {
	h.Redirects = nil
	nodecache(h)
}

func newNodecacheRig(t *testing.T, variant iptables.Variant) *rig {
	t.Helper()
	return newNodecacheRigBeside(t, testutil.IPTables, variant)
}

func newNodecacheRigBeside(t *testing.T, proxy testutil.ProxyMode, variant iptables.Variant) *rig {
	t.Helper()
	shape := nodecache
	if proxy == testutil.IPVS {
		shape = localsAlone
	}
	r := newRigBeside(t, proxy, variant, shape)
	for _, a := range r.node.KubeDNSAddrs() {
		r.node.Proxy.Add(testutil.DNSService(upstream(a.Is4()), a)...)
	}
	return r
}

// beside runs a test with each variant and each kube-proxy that this back end is for.
func beside(t *testing.T, f func(t *testing.T, proxy testutil.ProxyMode, variant iptables.Variant)) {
	t.Helper()
	for _, proxy := range testutil.Proxies() {
		if proxy == testutil.NFTables {
			continue // it rejects what is given back; its kernel has nf_tables
		}
		t.Run(string(proxy), func(t *testing.T) {
			variants(t, func(t *testing.T, variant iptables.Variant) { f(t, proxy, variant) })
		})
	}
}

// leftovers are the rules that a killed NodeLocal DNSCache leaves.
func (r *rig) leftovers() {
	r.t.Helper()
	_, kind, _ := strings.Cut(string(r.variant), "-")
	r.node.Host.NodeCacheRules(kind, r.ours()...)
}

// Where local and cluster DNS addresses stand on the link, pods and the node's own processes are answered in every state, also
// among the rules that a killed NodeLocal DNSCache left: before ours were there, or afterwards.
func TestClusterDNSOnTheLink(t *testing.T) {
	beside(t, func(t *testing.T, proxy testutil.ProxyMode, variant iptables.Variant) {
		for _, left := range []string{"alone", "left before", "made afterwards"} {
			t.Run(left, func(t *testing.T) {
				r := newNodecacheRigBeside(t, proxy, variant)
				switch left {
				case "left before":
					must(t, r.rules.Remove())
					r.leftovers()
					must(t, r.rules.Apply(r.host))
				case "made afterwards":
					r.leftovers()
					var drift *steer.DriftError
					if err := r.rules.Verify(r.host); !errors.As(err, &drift) || !strings.Contains(err.Error(), "behind another program's rules") {
						t.Errorf("rules that stand before ours are not seen: %v", err)
					}
					must(t, r.rules.Apply(r.host))
				}
				must(t, r.rules.Verify(r.host))
				pod := r.node.AddPod("pod")
				all := r.servers()
				check := func(who, when string) {
					t.Helper()
					r.want(who, pod.NetNS, when+", from a pod", all...)
					r.want(who, r.node.Host, when+", from the host", all...)
				}
				check("KUBEDNS", "never started")
				r.listen()
				check("KUBEDNS", "listening without a lease")
				r.renew()
				check("AGENT", "lease")
				r.wantUntracked(pod.NetNS, all...)
				r.wantUntracked(r.node.Host, all...)
				r.withdraw()
				check("KUBEDNS", "lease withdrawn")
				r.renew()
				r.agent.Stop()
				r.want("KUBEDNS", pod.NetNS, "killed, lease stands", all...)
				r.node.Host.DelLink("neardns0")
				r.withdraw()
				check("KUBEDNS", "the link gone")
			})
		}
	})
}

// wantUntracked asks over UDP and wants no entry of it.
func (r *rig) wantUntracked(from *testutil.NetNS, servers ...netip.AddrPort) {
	r.t.Helper()
	testutil.Eventually(r.t, 30*time.Second, func() error {
		testutil.FlushConntrack(r.node.Host)
		for _, s := range servers {
			if answer, err := testutil.Ask(from, s, "a.cluster.local", dns.TypeTXT, "udp", testutil.AskOptions{}); err != nil || answer.Who == "KUBEDNS" {
				return fmt.Errorf("%s: %v, %w", s, answer, err)
			}
		}
		for _, line := range testutil.Conntrack(r.node.Host) {
			if strings.HasPrefix(line, "udp") {
				return fmt.Errorf("a hit is tracked: %s", line)
			}
		}
		return nil
	})
}

// A connection keeps its way when the lease comes and goes, a pod's and a host process's.
func TestOwnConnectionsKeepTheirWay(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newNodecacheRig(t, variant)
		r.leftovers()
		must(t, r.rules.Apply(r.host))
		r.listen()
		pod := r.node.AddPod("pod")
		for _, from := range []*testutil.NetNS{pod.NetNS, r.node.Host} {
			for _, server := range r.servers() {
				dial := func() *testutil.Conn {
					c, err := testutil.Dial(from, "tcp", server, testutil.AskOptions{})
					must(t, err)
					t.Cleanup(c.Close)
					return c
				}
				fell := dial()
				wantConn(t, fell, "KUBEDNS")
				r.renew()
				wantConn(t, fell, "KUBEDNS")
				served := dial()
				wantConn(t, served, "AGENT")
				r.withdraw()
				wantConn(t, served, "AGENT")
				wantConn(t, fell, "KUBEDNS")
			}
		}
	})
}

// What is ceded reaches another program's socket without a lease, and kube-dns where there is none or only a hung agent's.
func TestCeded(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newNodecacheRig(t, variant)
		pod := r.node.AddPod("pod")
		all := r.servers()
		r.listen()
		r.want("KUBEDNS", pod.NetNS, "the agent without a lease", all...)
		r.agent.Stop()
		other := testutil.ServeDNS(t, r.node.Host, testutil.DNSConfig{Name: "OTHER", Listen: all})
		r.want("OTHER", pod.NetNS, "another program listens", all...)
		r.wantUntracked(pod.NetNS, all...)
		// As node-cache does once it listens. Nobody of ours is alive to see it.
		r.leftovers()
		r.want("OTHER", pod.NetNS, "it has put rules of its own before ours", all...)
		must(t, r.rules.Apply(r.host))
		r.want("OTHER", pod.NetNS, "ours stand before them", all...)
		other.Stop()
		r.want("KUBEDNS", pod.NetNS, "it is dead, too", all...)
	})
}

// kube-proxy has rules for those of our addresses that are a Service's. When it starts anew behind us, its jump stands first.
func TestKubeProxyStartsAfterUs(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newNodecacheRig(t, variant)
		pod := r.node.AddPod("pod")
		r.listen()
		r.renew()
		_, kind, _ := strings.Cut(string(variant), "-")
		for _, base := range []string{"PREROUTING", "OUTPUT"} {
			for _, program := range []string{"iptables", "ip6tables"} {
				r.node.Host.Run(program+"-"+kind, "-w", "-t", "nat", "-I", base, "-m", "comment", "--comment", "kubernetes service portals", "-j", "KUBE-SERVICES")
			}
		}
		must(t, r.rules.Apply(r.host))
		r.want("AGENT", pod.NetNS, "from a pod", r.servers()...)
		r.want("AGENT", r.node.Host, "from the host", r.servers()...)
	})
}

// What comes from beside the node for a Service's address is kube-proxy's affair; at the other addresses it has kube-dns, too.
func TestServiceFromBeside(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newNodecacheRig(t, variant)
		r.listen()
		r.renew()
		for _, l := range r.host.Locals {
			if l.Address.Is6() {
				continue
			}
			r.node.Neighbour.Run("ip", "route", "replace", testutil.Host(l.Address).String(), "via", r.node.HostAddrs()[0].String())
			answer, err := testutil.Ask(r.node.Neighbour, netip.AddrPortFrom(l.Address, 53), "a.cluster.local", dns.TypeTXT, "udp", testutil.AskOptions{Timeout: 300 * time.Millisecond})
			if err != nil || answer.Who != "KUBEDNS" {
				t.Errorf("%+v: %v, %v", l, answer, err)
			}
		}
	})
}
