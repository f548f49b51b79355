package steering

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// oursIn matches lines about rules, routing, links and chains of ours.
var oursIn = regexp.MustCompile("(?i)neardns|NODE-LOCAL-DNS|lookup 535[34]")

// ruleText is everything of ours in a namespace's tables, rules for routing included.
func ruleText(ns *testutil.NetNS) string {
	var out strings.Builder
	for _, args := range [][]string{
		{"iptables-nft-save"}, {"ip6tables-nft-save"}, {"iptables-legacy-save"}, {"ip6tables-legacy-save"}, {"nft", "list", "tables", "inet"},
		{"ip", "rule"}, {"ip", "-6", "rule"}, {"ip", "-br", "link"},
	} {
		text, _ := ns.TryRun("", args...)
		for line := range strings.Lines(text) {
			if oursIn.MatchString(line) {
				out.WriteString(line)
			}
		}
	}
	return out.String()
}

// wantRules waits until the rules in a namespace are of one back end alone. The host's link is the same in both.
func (n *node) wantRules(ns *testutil.NetNS, when string, iptablesRules bool) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		text := ruleText(ns)
		nft, ipt := strings.Contains(text, "table inet neardns"), strings.Contains(text, "-A NEARDNS-") || strings.Contains(text, "-A NODE-LOCAL-DNS")
		wrong := nft == iptablesRules || ipt != iptablesRules || strings.Contains(text, "neardns-turn") && !iptablesRules
		return testutil.ErrorIf(wrong, "%s, in %s: nftables %v, iptables %v:\n%s", when, ns.Name(), nft, ipt, text)
	})
}

// translated matches a conntrack entry that leads a pod's port from a cluster DNS address to the cache.
var translated = regexp.MustCompile(`> (10\.96\.0\.10|fd00:96::a):53, reply (169\.254\.20\.11|fd00:90de:d95::b):53`)

func (p *pod) wantNoneTranslated(when string) {
	p.node.t.Helper()
	entries := strings.Join(testutil.Conntrack(p.NetNS), "\n")
	testutil.Equal(p.node.t, when+": ports that lead to the cache", nil, translated.FindAllString(entries, -1))
}

// TestBackendChanges: a back end stays while a pod is steered by it, whatever the configuration names. After cleanup the next one comes,
// and nothing of either is left.
func TestBackendChanges(t *testing.T) {
	n := newNode(t, setup{families: testutil.Dual, proxy: testutil.IPTables})
	for backend, other := range map[string]string{
		nftables: string(iptables.NFT), string(iptables.NFT): nftables, string(iptables.Legacy): nftables,
	} {
		kept := map[bool]string{true: "", false: backend}[backend == nftables]
		n.setup.backend = kept
		p := n.addPod(nil)
		c := p.client()
		for _, configured := range []string{backend, other} {
			n.setup.backend = configured
			n.configure("")
			n.setup.backend = kept
			n.startAgent()
			n.wantSteered(c, backend, n.all()...)
			n.wantRules(n.Host, backend, backend != nftables)
			n.wantRules(p.NetNS, backend, backend != nftables)
			testutil.Check(t, p.check(), backend, "CHECK")
			testutil.Eventually(t, func() error {
				s := n.status()
				return testutil.ErrorIf(s.Backend != backend || !s.Switch || len(s.Leases) == 0, "%s: status %+v", backend, s)
			})
			n.wantHealthy()
			n.kill()
			n.wantFallback(c, backend+" killed", n.all()...)
		}
		kubeDNS := n.KubeDNSAddrs()[0]
		_, err := p.client().ask(target{kubeDNS, "udp"}, freshName(), testutil.Attempt)
		testutil.Must(t, err)
		n.prints(cli.Good, "cleanup --cni-conf "+n.path("none"))
		entries := strings.Join(testutil.Conntrack(p.NetNS), "\n") // at once: an entry lives for 30 s
		for _, ns := range []*testutil.NetNS{n.Host, p.NetNS} {
			testutil.Equal(t, backend+": left by cleanup in "+ns.Name(), "", ruleText(ns))
		}
		p.wantNoneTranslated(backend + ", cleaned up")
		testutil.Equal(t, backend+": entries of others", backend != nftables, strings.Contains(entries, "reply "+kubeDNS.String()))
		n.wantFallback(client{ns: p.NetNS}, "cleaned up", targets(n.ClusterDNS()...)...)
	}
}

// TestIPTablesBesideNFTables is the one pair that does not go together: kube-proxy in nftables mode rejects, in FORWARD, what
// is for a cluster DNS address and was not translated before. The fallback's proof shows it, so nothing is steered.
func TestIPTablesBesideNFTables(t *testing.T) {
	for _, families := range []testutil.Families{testutil.IPv4, testutil.IPv6, testutil.Dual} {
		t.Run(families.String(), func(t *testing.T) {
			t.Parallel()
			s := setup{families: families, proxy: testutil.NFTables, backend: string(iptables.NFT), proven: true}
			s.record(t, "that kube-proxy rejects in FORWARD what is for a ClusterIP and was not translated before: the fallback is never proven, so no pod is steered")
			n := newNode(t, s)
			p := n.wantUnproven("refused")
			n.wantFallback(p.client(), "not steered", targets(n.ClusterDNS()...)...)
		})
	}
}

// TestNothingTranslates: if no program translates the cluster DNS addresses, no pod is steered.
func TestNothingTranslates(t *testing.T) {
	t.Parallel()
	n := newNode(t, setup{families: testutil.Dual, proxy: testutil.NoProxy, proven: true})
	p := n.wantUnproven("kube-proxy")
	n.prints(anyCode, "status", "default/"+p.name, "not yet verified")
}

// wantUnproven starts an agent whose fallback check fails for a cause. The agent reports it, and does not steer a pod.
func (n *node) wantUnproven(cause string) *pod {
	n.t.Helper()
	p := n.addPod(nil)
	n.launchAgent()
	n.awaitStatus(func(s *agentStatus) error {
		wrong := len(s.Proven) > 0
		for _, a := range n.ClusterDNS() {
			wrong = wrong || !strings.Contains(s.Faults["fallback "+a.String()], cause)
		}
		return testutil.ErrorIf(wrong, "status does not show the fallback's fault: %+v", s)
	})
	testutil.Check(n.t, p.in(podfile.Pending))
	p.wantNoRules("the fallback is not verified")
	return p
}

// TestIPTablesRepair takes rules, routes, sysctls and links of the iptables back end away, as other programs do.
func TestIPTablesRepair(t *testing.T) {
	for _, variant := range iptables.Variants() {
		t.Run(string(variant), func(t *testing.T) {
			t.Parallel()
			n, p := newServed(t, setup{families: testutil.IPv4, proxy: testutil.IPTables, backend: string(variant)})
			c := p.client()
			program := "iptables" + strings.TrimPrefix(string(variant), "iptables")
			ipt := func(args ...string) []string { return append([]string{program, "-w", "-t"}, args...) }
			ip := func(args ...string) []string { return append([]string{"ip"}, args...) }
			for _, damage := range [][][]string{ // fewer than what passes for a quarrel with another program
				{ipt("raw", "-F"), ipt("mangle", "-F")}, {ipt("filter", "-F")},
				{ipt("nat", "-F", "NEARDNS-GIVE-BACK"), ipt("nat", "-D", "PREROUTING", "-j", "NODE-LOCAL-DNS")},
				{ip("rule", "del", "pref", "92"), ip("rule", "del", "pref", "95"), ip("rule", "del", "pref", "96"), ip("rule", "del", "pref", "97")},
				{ip("rule", "del", "pref", "97"), ip("rule", "add", "pref", "97", "to", n.ClusterDNS()[0].String(), "lookup", "main")},
				{ip("route", "flush", "table", "5353"), ip("route", "flush", "table", "5354"), ip("route", "del", "169.254.20.249")},
				{{"sysctl", "-qw", "net.ipv4.conf.all.rp_filter=1", "net.ipv4.conf.neardns-turn0.rp_filter=1", "net.ipv4.conf.neardns-turn1.rp_filter=1"}},
				{ip("link", "set", "neardns-turn1", "down")}, {ip("link", "del", "neardns-turn0")},
			} {
				before := n.ours(program)
				n.agent.Stop() // on a slow machine it would mend each part of a damage for itself, which is a quarrel soon
				for _, args := range damage {
					n.Host.Run(args...)
				}
				n.agent.Cont()
				testutil.Eventually(t, func() error {
					now := n.ours(program)
					diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(now, "\n"))
					return testutil.ErrorIf(diff != "", "%v is not repaired (-before +now):\n%s", damage, diff)
				})
			}
			n.wantSteered(c, "repaired", n.all()...)
			n.kill()
			n.wantFallback(c, "killed after the repairs", n.all()...)
			if s := n.status(); s.Counters["delivered_udp"].Packets == 0 || s.Counters["fallback_udp"].Packets == 0 {
				t.Errorf("counters %v", s.Counters)
			}
		})
	}
}

// ours is what the host has of ours, of one program's rules, in no order; the filter of a strict node as it counts.
func (n *node) ours(program string) string {
	n.t.Helper()
	var lines []string
	for _, args := range [][]string{
		{program + "-save"}, {"ip", "rule"}, {"ip", "route", "show", "table", "5353"}, {"ip", "route", "show", "table", "5354"},
		{"ip", "route", "show", "table", "main"}, {"ip", "-br", "link", "show", "up"},
	} {
		text, _ := n.Host.TryRun("", args...)
		for line := range strings.Lines(text) {
			if oursIn.MatchString(line) && !strings.HasPrefix(line, ":") {
				name, _, _ := strings.Cut(line, "@") // behind it: what the kernel gave a new link
				lines = append(lines, name)
			}
		}
	}
	all := strings.TrimSpace(n.Host.Run("cat", "/proc/sys/net/ipv4/conf/all/rp_filter"))
	for _, end := range []string{"neardns-turn0", "neardns-turn1"} {
		if own, err := n.Host.TryRun("", "cat", "/proc/sys/net/ipv4/conf/"+end+"/rp_filter"); err != nil || max(all, strings.TrimSpace(own)) == "1" {
			lines = append(lines, end+" is strict")
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
