package steering

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/testutil"
)

// hardship is a way in which a node is kept from querying while its pods are not.
type hardship struct {
	name   string
	cause  string // in the agent's words
	remedy string // as the doctor does
	begin  func(n *node) (over func())
	late   bool // the lease is given up by evidence or at the first turn: the proof fails before
}

var hardships = []hardship{
	{
		name: "host's OUTPUT", cause: "operation not permitted", remedy: "let the host itself query kube-dns: its firewall's OUTPUT",
		begin: func(n *node) func() { // the host may query its own resolver and no server in the cluster
			return chain(n.Host, "inet foreign", "hook output priority 10", "ip daddr 10.0.0.0/8 meta l4proto { tcp, udp } th dport 53 drop\n"+
				"ip6 daddr { fd00:96::/64, fd00:244::/32 } meta l4proto { tcp, udp } th dport 53 drop")
		},
	},
	{name: "no default route", cause: "network is unreachable", remedy: "give the host a route", begin: func(n *node) func() {
		gateways := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
		for _, a := range gateways {
			n.Host.DelRoute(testutil.DefaultRoute(a), "eth0")
		}
		return func() {
			for _, a := range gateways {
				n.Host.AddRoute(testutil.DefaultRoute(a), a, "eth0")
			}
		}
	}},
	{name: "policy on kube-dns", cause: "silent", remedy: "admits pods and not nodes", late: true, begin: func(n *node) func() {
		// A CNI makes this in kube-dns's netns of a policy that admits pods and not nodes.
		return chain(n.KubeDNS, "inet foreign", "hook input priority 0",
			"ip saddr 10.244.1.0/24 accept\nip6 saddr fd00:244:1::/64 accept\nmeta l4proto { tcp, udp } th dport 53 drop")
	}},
}

// TestUnableToAsk keeps the node from querying kube-dns, in each way that leaves its pods theirs: from the start no pod is ever sent to
// the agent, later they are given back, and both ways the cache answers again when the hardship is over.
func TestUnableToAsk(t *testing.T) {
	for _, h := range hardships {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, setup{families: testutil.Dual, install: true})
			p := n.addPod(nil)
			if !h.late {
				over := h.begin(n)
				n.launchAgent()
				n.wantUnable(h)
				n.wantFallback(p.client(), h.name+" from the start", n.all()...)
				n.wantDoctor(h)
				over()
			} else {
				n.launchAgent()
			}
			n.wantSteered(p.client(), h.name+" over", n.all()...)
			n.wantReady(h.name+" over", true, "")

			over := h.begin(n)
			n.awaitFallback(p.client(), h.name, n.all()...)
			n.wantUnable(h)
			n.wantDoctor(h)
			over()
			n.wantSteered(p.client(), h.name+" over again", n.all()...)
			n.wantReady(h.name+" over again", true, "")
		})
	}
}

// wantUnable waits until the agent reports that it cannot query its upstreams, and why.
func (n *node) wantUnable(h hardship) {
	n.t.Helper()
	n.wantReady(h.name, false, "cannot query")
	n.awaitStatus(func(s *agentStatus) error {
		return testutil.ErrorIf(!strings.Contains(s.CannotAsk, h.cause), "the agent reports %q, want %q", s.CannotAsk, h.cause)
	})
}

// wantDoctor looks for cause, remedy and a verdict that is not drawn from leases alone.
func (n *node) wantDoctor(h hardship) {
	n.t.Helper()
	text := n.prints(cli.Degraded, n.doctor(), "cannot query", h.remedy)
	if strings.Contains(text, "; steered pods are answered by the cache\n") {
		n.t.Errorf("the doctor's verdict does not say who answers:\n%s", text)
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
			n, p := newServed(t, setup{config: calm})
			n.wantSteered(p.client(), "before", n.all()...)
			f := n.startUDP(p, n.all()[0].server(), 100, "ttl-600.kept.default.svc.cluster.local.") // a mute TCP client is cut off
			f.more(50)
			end(n)
			n.awaitLog(0, cannotAsk)
			f.allAnswered()
			n.wantReady("outage", false, "cannot query")
			before, _, _ := strings.Cut(n.agent.Output(), cannotAsk)
			if strings.Contains(before, "lease withdrawn") {
				t.Error("a lease was withdrawn")
			}
		})
	}
}
