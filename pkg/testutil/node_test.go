package testutil

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"
)

var attaches = []Attach{PTP, BridgeCNI, BridgeNF, ProxyARP, MACVLAN, Elsewhere}

// requireAttach skips what this kernel cannot do.
func requireAttach(t *testing.T, attach Attach) {
	t.Helper()
	if attach == BridgeNF {
		RequireSysctl(t, NewNS(t, "probe"), "net.bridge.bridge-nf-call-iptables")
	}
}

// TestNode shows that a plain pod is answered by kube-dns in every cell, that the answer's source is right, and that the
// client is not masqueraded where kube-proxy would not.
func TestNode(t *testing.T) {
	RequireRoot(t)
	for _, attach := range attaches {
		for _, proxy := range Proxies() {
			for _, families := range []Families{IPv4, IPv6, Dual} {
				options := Options{Families: families, Proxy: proxy, Attach: attach}
				t.Run(options.String(), func(t *testing.T) {
					t.Parallel()
					requireAttach(t, attach)
					node := NewNode(t, options)
					first, second := node.AddPod("first"), node.AddPod("second")
					for _, ip := range node.ClusterDNS() {
						server := netip.AddrPortFrom(ip, 53)
						for _, network := range []string{"udp", "tcp"} {
							for _, pod := range []*Pod{first, second} {
								answer := WantWho(t, "KUBEDNS", pod.NetNS, server, "a.cluster.local", network)
								if outside := attach == MACVLAN || attach == Elsewhere; !outside && answer.Client != pod.Addr(ip.Is4()) {
									t.Errorf("kube-dns saw %s as client, want %s", answer.Client, pod.Addr(ip.Is4()))
								}
							}
							WantWho(t, "KUBEDNS", node.Host, server, "host.cluster.local", network)
						}
						if first.HostInterface != "" && len(Conntrack(node.Host)) == 0 {
							t.Error("translated, but nothing is tracked")
						}
					}
				})
			}
		}
	}
}

func TestNodeWithoutProxy(t *testing.T) {
	RequireRoot(t)
	t.Parallel()
	node := NewNode(t, Options{Families: Dual, Attach: PTP})
	pod := node.AddPod("pod")
	for _, is4 := range []bool{true, false} {
		_, err := Ask(pod.NetNS, node.Service(is4), "a.cluster.local", dns.TypeA, "udp", AskOptions{Timeout: Silence})
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s answered without a translation: %v", node.Service(is4), err)
		}
	}
	for _, a := range node.KubeDNSAddrs() {
		WantWho(t, "KUBEDNS", pod.NetNS, netip.AddrPortFrom(a, 53), "a.cluster.local", "udp")
	}
}

func TestProxyChanges(t *testing.T) {
	RequireRoot(t)
	for _, mode := range Proxies() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			node := NewNode(t, Options{Families: Dual, Proxy: mode, Attach: PTP})
			pod := node.AddPod("pod")
			service := node.Proxy.services
			node.Proxy.Add(append(ManyServices(true, 50), ManyServices(false, 50)...)...)
			WantWho(t, "KUBEDNS", pod.NetNS, node.Service(true), "a.cluster.local", "tcp")

			// Of two endpoints, each gets some of the queries.
			second := netip.MustParseAddr("10.244.2.3")
			node.KubeDNS.AddAddr("eth0", Host(second))
			node.Host.AddRoute(Host(second), netip.Addr{}, "kubedns0")
			ServeDNS(t, node.KubeDNS, DNSConfig{Name: "SECOND", Listen: []netip.AddrPort{netip.AddrPortFrom(second, 53)}})
			node.Proxy.Set(DNSService(clusterDNS4, kubeDNS4, second)...)
			heard := map[string]int{}
			for range 40 {
				answer, err := Ask(pod.NetNS, node.Service(true), "a.cluster.local", dns.TypeA, "udp", AskOptions{})
				Must(t, err)
				heard[answer.Who]++
			}
			if heard["KUBEDNS"] == 0 || heard["SECOND"] == 0 {
				t.Errorf("two endpoints, heard %v", heard)
			}

			// No endpoint: refused at once, in both families.
			for i := range service {
				service[i].Endpoints = nil
			}
			node.Proxy.Set(service...)
			for _, is4 := range []bool{true, false} {
				c, err := Dial(pod.NetNS, "udp", node.Service(is4), AskOptions{})
				Must(t, err)
				if _, err := c.Ask("a.cluster.local", dns.TypeA); !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("no endpoints: %v, want %v", err, syscall.ECONNREFUSED)
				}
				c.Close()
			}

			node.Proxy.Remove()
			for _, save := range []string{"iptables-save", "ip6tables-save"} {
				if out := node.Host.Run(save); strings.Contains(out, "KUBE") {
					t.Errorf("%s after Remove:\n%s", save, out)
				}
			}
			if out := node.Host.Run("nft", "list", "tables"); strings.Contains(out, "kube-proxy") {
				t.Errorf("after Remove:\n%s", out)
			}
		})
	}
}

func TestExternal(t *testing.T) {
	RequireRoot(t)
	t.Parallel()
	node := NewNode(t, Options{Families: Dual, Proxy: NFTables, Attach: BridgeCNI, External: true})
	pod := node.AddPod("pod")
	WantWho(t, "KUBEDNS", pod.NetNS, node.Service(true), "a.cluster.local", "udp")
	WantWho(t, "EXTERNAL", pod.NetNS, node.Service(true), "example.org", "udp")
	for _, a := range node.ExternalAddrs() {
		WantWho(t, "EXTERNAL", node.Host, netip.AddrPortFrom(a, 53), "example.org", "tcp")
	}
}

func TestPodDelete(t *testing.T) {
	RequireRoot(t)
	t.Parallel()
	node := NewNode(t, Options{Families: Dual, Attach: PTP})
	before := node.Host.Run("ip", "route") + node.Host.Run("ip", "-6", "route")
	node.AddPod("pod").Delete()
	Eventually(t, func() error {
		if after := node.Host.Run("ip", "route") + node.Host.Run("ip", "-6", "route"); after != before {
			return fmt.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
		return nil
	})
}
