package steering

import (
	"fmt"
	"strings"
	"testing"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/testutil"
)

// firewall is what firewalld's zones come to: the host takes answers to its own packets, and nothing that pods begin.
const firewall = `table inet foreign {
	chain input {
		type filter hook input priority 10; policy accept
		ct state established,related accept
		iifname "lo" accept
		meta l4proto ipv6-icmp accept
		%s
	}
}
`

// TestFirewalledInput shows that the prober comes the pods' way: where a foreign firewall keeps pods from the host, no
// lease is earned, kube-dns answers, and the reason is reported. Once the firewall lets them through, the cache answers.
func TestFirewalledInput(t *testing.T) {
	for name, verdict := range map[string]string{"reject": "reject with icmpx admin-prohibited", "drop": "drop"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, setup{families: testutil.Dual, attach: testutil.BridgeCNI})
			n.Host.RunInput(fmt.Sprintf(firewall, verdict), "nft", "-f", "-")
			p := n.addPod(nil)
			n.launchAgent()
			n.wantNoLease()
			n.wantFallback(p.client(), "firewall from the start", n.all()...)

			n.Host.Run("nft", "delete", "table", "inet", "foreign")
			n.wantSteered(p.client(), "firewall gone", n.all()...)
			n.awaitReady()

			n.Host.RunInput(fmt.Sprintf(firewall, verdict), "nft", "-f", "-")
			n.awaitFallback(p.client(), "firewall comes", n.all()...)
			n.wantNoLease()
		})
	}
}

// wantNoLease waits until the agent reports about each of its addresses that it holds no lease, and why.
func (n *node) wantNoLease() {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		s, err := n.agentStatus()
		if err != nil || len(s.Leases) != len(n.all()) {
			return fmt.Errorf("status: %+v, %w", s, err)
		}
		for _, l := range s.Leases {
			if l.Held || !strings.Contains(l.Reason, "firewall") {
				return fmt.Errorf("lease of %s over %s: held %v, reason %q, want one that names a firewall", l.Address, l.Protocol, l.Held, l.Reason)
			}
		}
		return nil
	})
	n.prints(cli.Degraded, "status", "firewall")
	n.prints(anyCode, n.doctor(), "inet foreign input")
	if !strings.Contains(n.agent.Output(), "firewall") {
		n.t.Errorf("the log does not name the reason:\n%s", n.agent.Output())
	}
}
