package steering

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// hostOutput lets the host query its own resolver and no server in the cluster.
const hostOutput = `table inet foreign {
	chain output {
		type filter hook output priority 10; policy accept
		ip daddr 10.0.0.0/8 meta l4proto { tcp, udp } th dport 53 drop
		ip6 daddr { fd00:96::/64, fd00:244::/32 } meta l4proto { tcp, udp } th dport 53 drop
	}
}
`

// onKubeDNS is what a CNI makes, in kube-dns's netns, of a policy that admits pods and not nodes.
const onKubeDNS = `table inet foreign {
	chain input {
		type filter hook input priority 0; policy accept
		ip saddr 10.244.1.0/24 accept
		ip6 saddr fd00:244:1::/64 accept
		meta l4proto { tcp, udp } th dport 53 drop
	}
}
`

// hardship is a way in which a node is kept from querying while its pods are not.
type hardship struct {
	name        string
	begin, over func(n *node)
	cause       string // in the agent's words
	remedy      string // as the doctor does
	late        bool   // the lease is given up by evidence or at the first turn: the proof fails before
}

func table(ns func(*node) *testutil.NetNS, text string) (begin, over func(*node)) {
	return func(n *node) { ns(n).RunInput(text, "nft", "-f", "-") }, func(n *node) { ns(n).Run("nft", "delete", "table", "inet", "foreign") }
}

func hardships() []hardship {
	output := hardship{name: "host's OUTPUT", cause: "operation not permitted", remedy: "let the host itself query kube-dns: its firewall's OUTPUT"}
	output.begin, output.over = table(func(n *node) *testutil.NetNS { return n.Host }, hostOutput)
	policy := hardship{name: "policy on kube-dns", cause: "silent", remedy: "admits pods and not nodes", late: true}
	policy.begin, policy.over = table(func(n *node) *testutil.NetNS { return n.KubeDNS }, onKubeDNS)
	route := hardship{name: "no default route", cause: "network is unreachable", remedy: "give the host a route"}
	gateways := func(n *node, change func(netip.Addr)) {
		for _, a := range []string{"192.0.2.1", "2001:db8::1"} {
			change(netip.MustParseAddr(a))
		}
	}
	route.begin = func(n *node) {
		gateways(n, func(a netip.Addr) { n.Host.DelRoute(testutil.DefaultRoute(a), "eth0") })
	}
	route.over = func(n *node) {
		gateways(n, func(a netip.Addr) { n.Host.AddRoute(testutil.DefaultRoute(a), a, "eth0") })
	}
	return []hardship{output, route, policy}
}

// TestUnableToAsk keeps the node from querying kube-dns, in each way that leaves its pods theirs: from the start no pod is ever sent to
// the agent, later they are given back, and both ways the cache answers again when the hardship is over.
func TestUnableToAsk(t *testing.T) {
	for _, h := range hardships() {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, setup{families: testutil.Dual, install: true})
			p := n.addPod(nil)
			if !h.late {
				h.begin(n)
				n.launchAgent()
				n.wantUnable(h)
				n.wantFallback(p.client(), h.name+" from the start", n.all()...)
				n.wantDoctor(h)
				h.over(n)
			} else {
				n.launchAgent()
			}
			n.wantSteered(p.client(), h.name+" over", n.all()...)
			n.wantReady(h.name+" over", true, "")

			h.begin(n)
			n.awaitFallback(p.client(), h.name, n.all()...)
			n.wantUnable(h)
			n.wantDoctor(h)
			h.over(n)
			n.wantSteered(p.client(), h.name+" over again", n.all()...)
			n.wantReady(h.name+" over again", true, "")
		})
	}
}

// wantUnable waits until the agent reports that it cannot query its upstreams, and why.
func (n *node) wantUnable(h hardship) {
	n.t.Helper()
	n.wantReady(h.name, false, "cannot query")
	testutil.Eventually(n.t, func() error {
		s, err := n.agentStatus()
		if err != nil {
			return err
		}
		if !strings.Contains(s.CannotAsk, h.cause) {
			return fmt.Errorf("the agent says %q, want %q", s.CannotAsk, h.cause)
		}
		return nil
	})
}

// wantDoctor looks for cause, remedy and a verdict that is not drawn from leases alone.
func (n *node) wantDoctor(h hardship) {
	n.t.Helper()
	code, text, _ := n.run("doctor", "--config", n.configFile(), "--cni-conf", n.path("none"))
	if code != 3 || !strings.Contains(text, "cannot query") || !strings.Contains(text, h.remedy) || strings.Contains(text, "; steered pods are answered by the cache\n") {
		n.t.Errorf("doctor ends with %d, want 3, the remedy (%s) and a verdict that says who answers:\n%s", code, h.remedy, text)
	}
}

// TestKubeDNSOutageKeepsLeases ends kube-dns for all in three ways: names in the cache are answered, and the agent finds that it cannot query
// them before any lease changes. TestOutageOfKubeDNS (agent/internal/node) has for how long they stay.
func TestKubeDNSOutageKeepsLeases(t *testing.T) {
	const cannotAsk = "no upstream answers the agent's queries for the cluster's names"
	for name, end := range map[string]func(*node){
		"hangs":        func(n *node) { n.DNS.Behave(testutil.Behaviour{Drop: true}) },
		"ended":        func(n *node) { n.DNS.Stop() },
		"no endpoints": func(n *node) { n.Proxy.Set(testutil.DNSService(n.ClusterDNS()[0])...) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, setup{config: calm})
			p := n.addPod(nil)
			n.startAgent()
			n.wantSteered(p.client(), "before", n.all()...)
			f := n.startTraffic(p, "ttl-600.kept.default.svc.cluster.local.", 100)
			f.more(50)
			end(n)
			n.awaitLog(0, cannotAsk)
			f.allAnswered()
			n.wantReady("outage", false, "cannot query")
			before, _, _ := strings.Cut(n.agent.Output(), cannotAsk)
			if strings.Contains(before, "lease lost") || strings.Contains(before, "lease withdrawn") {
				t.Error("a lease changed")
			}
		})
	}
}
