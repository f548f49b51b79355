package iptables_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// kube-proxy has rules for those of our addresses that are a Service's. If it restarts later than neardns, its jump comes first,
// until the agent repairs the rules.
func TestKubeProxyStartsAfterUs(t *testing.T) {
	const variant = iptables.Legacy
	r := newNodeCacheRig(t, variant)
	pod := r.Node.AddPod("pod")
	r.Listen()
	r.Renew()
	_, kind, _ := strings.Cut(string(variant), "-")
	for _, base := range []string{"PREROUTING", "OUTPUT"} {
		for _, program := range []string{"iptables", "ip6tables"} {
			r.Node.Host.Run(program+"-"+kind, "-w", "-t", "nat", "-I", base, "-m", "comment", "--comment", "kubernetes service portals", "-j", "KUBE-SERVICES")
		}
	}
	must(t, r.rules.Apply(r.Host))
	r.Want("AGENT", pod.NetNS, "from a pod", r.Servers()...)
	r.Want("AGENT", r.Node.Host, "from the host", r.Servers()...)
}

// Packets from another machine to a Service's address are left to kube-proxy; those to the other addresses go to kube-dns, too.
func TestServiceFromBeside(t *testing.T) {
	r := newNodeCacheRig(t, iptables.NFT)
	r.Listen()
	r.Renew()
	for _, l := range r.Host.Locals {
		if l.Address.Is6() {
			continue
		}
		r.Node.Neighbour.Run("ip", "route", "replace", testutil.Host(l.Address).String(), "via", r.Node.HostAddrs()[0].String())
		answer, err := testutil.Ask(r.Node.Neighbour, netip.AddrPortFrom(l.Address, 53), "a.cluster.local", dns.TypeTXT, "udp", testutil.AskOptions{})
		if err != nil || answer.Who != "KUBEDNS" {
			t.Errorf("%+v: %v, %v", l, answer, err)
		}
	}
}
