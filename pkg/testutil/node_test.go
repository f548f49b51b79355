package testutil

import (
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"
)

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
