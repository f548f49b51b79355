package iptables_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/rig"
)

// TestRestoredAtBoot is a node whose rules another program saved and puts back at boot (iptables-persistent, iptables.service), where
// nothing else of neardns exists: no agent, no link, no hairpin. A client that queries the cluster DNS address gets kube-dns's answers.
// As soon as a neardns program runs, all is as it should be. Both variants print the same rules of neardns.
func TestRestoredAtBoot(t *testing.T) {
	printed := map[string][]string{} // by kind of rig: of the first variant, then of the second
	variants(t, func(t *testing.T, variant iptables.Variant) {
		for name, newRig := range map[string]func(testing.TB, iptables.Variant) *variantRig{
			"redirects":             func(t testing.TB, v iptables.Variant) *variantRig { t.Helper(); return newRig(t, v) },
			"in node-cache's place": newNodeCacheRig,
		} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, variant)
				_, kind, _ := strings.Cut(string(variant), "-")
				saved := map[string]string{}
				for _, family := range []string{"iptables", "ip6tables"} {
					saved[family] = r.Node.Host.Run(family + "-" + kind + "-save")
				}
				printed[name] = append(printed[name], ourRules(saved["iptables"])+ourRules(saved["ip6tables"]))
				must(t, r.rules.Remove())
				must(t, r.hairpin.Remove())
				for family, rules := range saved {
					r.Node.Host.RunInput(rules, family+"-"+kind+"-restore", "-w")
				}
				wantPresent(t, r.rules, true, "after the restore")
				var cluster []netip.AddrPort
				for _, a := range r.Node.ClusterDNS() {
					cluster = append(cluster, netip.AddrPortFrom(a, 53))
				}
				r.Want("KUBEDNS", r.Node.AddPod("unsteered").NetNS, "without anything else of ours", cluster...)
				r.Want("KUBEDNS", r.Node.Host, "from the host", cluster...)

				_, err := r.hairpin.Ensure(r.behind(), r.Host.OwnLocals)
				must(t, err)
				must(t, r.rules.Verify(r.Host))
				r.Want("KUBEDNS", r.Steered("steered").NetNS, "the hairpin is back", r.Servers()...)
			})
		}
	})
	for name, p := range printed {
		if len(strings.Split(p[0], "\n")) < 20 || p[0] != p[len(p)-1] {
			t.Errorf("%s:\n%s", name, strings.Join(p, "\n"))
		}
	}
}

// ourRules lists neardns's rules of a saved ruleset by table and chain.
func ourRules(saved string) string {
	var out []string
	table := ""
	for line := range strings.Lines(saved) {
		if strings.HasPrefix(line, "*") {
			table = strings.TrimSpace(line)
		}
		if strings.HasPrefix(line, "-A ") && (strings.Contains(line, "NEARDNS-") || strings.Contains(line, "NODE-LOCAL-DNS")) {
			out = append(out, table+" "+line)
		}
	}
	chain := func(rule string) string { return strings.Join(strings.Fields(rule)[:3], " ") }
	slices.SortStableFunc(out, func(a, b string) int { return strings.Compare(chain(a), chain(b)) })
	return strings.Join(out, "")
}

// TestUntranslated deletes the Service whose address is on neardns's link: packets that kube-proxy does not translate go to the fallback.
func TestUntranslated(t *testing.T) {
	r := newNodeCacheRig(t, iptables.Legacy)
	pod := r.Node.AddPod("pod")
	r.Listen()
	var services []testutil.Service
	for _, a := range r.Node.KubeDNSAddrs() {
		services = append(services, testutil.DNSService(rig.Upstream(a.Is4()), a)...)
	}
	r.Node.Proxy.Set(services...)
	r.Want("KUBEDNS", pod.NetNS, "the second Service is all there is", r.Servers()...)
	r.Want("KUBEDNS", r.Node.Host, "from the host", r.Servers()...)
	r.Renew()
	r.Want("AGENT", pod.NetNS, "under a lease", r.Servers()...)
	r.Want("AGENT", r.Node.Host, "from the host, under a lease", r.Servers()...)
}
