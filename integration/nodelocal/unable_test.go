package nodelocal_test

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestUnableToAsk has the host's OUTPUT drop the queries of the Corefile's forward, while pods and probes are not affected. The agent
// withdraws the leases and kube-dns answers, until the rule goes.
func TestUnableToAsk(t *testing.T) {
	n := cell{testutil.IPv4, testutil.NFTables, ""}.node(t)
	pod := n.pod()
	p := n.serve()
	n.awaitLog(p, 0, "fallback verified")
	n.each(pod.NetNS, "before", cached, n.served()...)
	from := len(p.Output())
	n.Host.RunInput(`table inet foreign {
	chain output {
		type filter hook output priority 10; policy accept
		ip daddr 10.0.0.0/8 ip daddr != `+n.served()[1].String()+` meta l4proto { tcp, udp } th dport 53 drop
	}
}
`, "nft", "-f", "-")
	testutil.Eventually(t, func() error { return n.all(pod.NetNS, direct, n.served()...) })
	n.awaitLog(p, from, "no upstream answers the agent's queries for the cluster's names")
	for line := range strings.Lines(p.Output()[from:]) {
		if strings.Contains(line, "lease lost") && strings.Contains(line, unix.EPERM.Error()) {
			t.Errorf("the rules keep probes from the agent: %s", line)
		}
	}
	n.Host.Run("nft", "delete", "table", "inet", "foreign")
	testutil.Eventually(t, func() error {
		err := n.all(pod.NetNS, cached, n.served()...)
		return testutil.ErrorIf(err != nil, "the way is back: %w", err)
	})
}
