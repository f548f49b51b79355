package iptables_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestRestoredAtBoot is a node whose rules somebody saved and puts back at boot (iptables-persistent, iptables.service), where
// nothing else of ours is: no agent, no link, no hairpin. Whoever asks the cluster DNS address has kube-dns, whether we ever come
// back or not; and once somebody of ours comes, all is as it should be.
func TestRestoredAtBoot(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		for name, rig := range map[string]func(*testing.T, iptables.Variant) *rig{
			"redirects":             func(t *testing.T, f iptables.Variant) *rig { return newRig(t, f) },
			"in node-cache's place": newNodecacheRig,
		} {
			t.Run(name, func(t *testing.T) {
				r := rig(t, variant)
				_, kind, _ := strings.Cut(string(variant), "-")
				saved := map[string]string{}
				for _, family := range []string{"iptables", "ip6tables"} {
					saved[family] = r.node.Host.Run(family + "-" + kind + "-save")
				}
				must(t, r.rules.Remove())
				must(t, r.hairpin.Remove())
				for family, rules := range saved {
					r.node.Host.RunInput(rules, family+"-"+kind+"-restore", "-w")
				}
				if there, err := r.rules.Present(); err != nil || !there {
					t.Errorf("the saved rules were not put back: %v, %v", there, err)
				}
				var cluster []netip.AddrPort
				for _, a := range r.node.ClusterDNS() {
					cluster = append(cluster, netip.AddrPortFrom(a, 53))
				}
				r.want("KUBEDNS", r.node.AddPod("unsteered").NetNS, "without anything else of ours", cluster...)
				r.want("KUBEDNS", r.node.Host, "from the host", cluster...)

				_, err := r.hairpin.Ensure(r.behind(), r.host.OwnLocals)
				must(t, err)
				must(t, r.rules.Verify(r.host))
				r.want("KUBEDNS", r.steered("steered").NetNS, "the hairpin is back", r.servers()...)
			})
		}
	})
}

// TestUntranslated takes the Service away whose address stands on our link, as one has it who names another address there: what
// kube-proxy does not translate goes to whom we give it back to.
func TestUntranslated(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newNodecacheRig(t, variant)
		pod := r.node.AddPod("pod")
		r.listen()
		var services []testutil.Service
		for _, a := range r.node.KubeDNSAddrs() {
			services = append(services, testutil.DNSService(upstream(a.Is4()), a)...)
		}
		r.node.Proxy.Set(services...)
		r.want("KUBEDNS", pod.NetNS, "the second Service is all there is", r.servers()...)
		r.want("KUBEDNS", r.node.Host, "from the host", r.servers()...)
		r.renew()
		r.want("AGENT", pod.NetNS, "under a lease", r.servers()...)
		r.want("AGENT", r.node.Host, "from the host, under a lease", r.servers()...)
	})
}
