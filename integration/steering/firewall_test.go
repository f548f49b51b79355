package steering

import (
	"strings"
	"testing"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/testutil"
)

// firewall is what firewalld's zones come to: the host takes answers to its own packets, and nothing that pods begin.
func (n *node) firewall(verdict string) (end func()) {
	return chain(n.Host, "inet foreign", "hook input priority 10",
		"ct state established,related accept\niifname \"lo\" accept\nmeta l4proto ipv6-icmp accept\n"+verdict)
}

// TestFirewalledInput shows that the prober comes the pods' way: where a foreign firewall keeps pods from the host, no
// lease is earned, kube-dns answers, and the reason is reported. Once the firewall lets them through, the cache answers.
func TestFirewalledInput(t *testing.T) {
	for name, verdict := range map[string]string{"reject": "reject with icmpx admin-prohibited", "drop": "drop"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, setup{families: testutil.Dual, attach: testutil.BridgeCNI})
			end := n.firewall(verdict)
			p := n.addPod(nil)
			n.launchAgent()
			n.wantNoLease()
			n.wantFallback(p.client(), "firewall from the start", n.all()...)

			end()
			n.wantSteered(p.client(), "firewall gone", n.all()...)
			n.awaitReady()

			n.firewall(verdict)
			n.awaitFallback(p.client(), "firewall comes", n.all()...)
			n.wantNoLease()
		})
	}
}

// wantNoLease waits until the agent reports about each of its addresses that it holds no lease, and why.
func (n *node) wantNoLease() {
	n.t.Helper()
	n.awaitStatus(func(s *agentStatus) error {
		wrong := len(s.Leases) != len(n.all())
		for _, l := range s.Leases {
			wrong = wrong || l.Held || !strings.Contains(l.Reason, "firewall")
		}
		return testutil.ErrorIf(wrong, "leases: %+v, want none held, each with a reason that names a firewall", s.Leases)
	})
	n.prints(cli.Degraded, "status", "firewall")
	n.prints(cli.Degraded, "ready", "firewall")
	n.prints(anyCode, n.doctor(), "inet foreign filtered")
	if !strings.Contains(n.agent.Output(), "firewall") {
		n.t.Errorf("the log does not name the reason:\n%s", n.agent.Output())
	}
}
