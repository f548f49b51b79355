package nodelocal_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestUnableToAsk has the host's OUTPUT drop what the Corefile's forward asks, while pods and prober have their way to kube-dns: the
// leases go, kube-dns answers, and both come back with the way.
func TestUnableToAsk(t *testing.T) {
	n := cell{testutil.IPv4, testutil.NFTables, ""}.node(t)
	pod := n.pod()
	p := n.agent()
	n.awaitLeases(p, n.served()...)
	n.awaitLog(p, 0, "fallback proven")
	n.each(pod.NetNS, "before", cached, n.served()...)
	// An agent that gets no CPU for a while loses its leases by a probe, too, now and then. What the rules did to probes, they would do each time.
	for try := 1; n.unable(p, pod); try++ {
		if try == 3 {
			t.Error("a probe failed")
			break
		}
	}
}

// unable takes the way away and gives it back, and tells whether a probe failed meanwhile.
func (n *node) unable(p *testutil.Process, pod *testutil.Pod) (lost bool) {
	n.t.Helper()
	said := len(p.Output())
	n.Host.RunInput(`table inet foreign {
	chain output {
		type filter hook output priority 10; policy accept
		ip daddr 10.0.0.0/8 meta l4proto { tcp, udp } th dport 53 drop
	}
}
`, "nft", "-f", "-")
	began := time.Now()
	testutil.Eventually(n.t, func() error { return n.all(pod.NetNS, direct, n.served()...) })
	n.t.Logf("answered by kube-dns after %v", time.Since(began).Round(100*time.Millisecond))
	n.awaitLog(p, said, "what pods need asked cannot be asked from this node")
	lost = strings.Contains(p.Output()[said:], "lease lost")
	n.Host.Run("nft", "delete", "table", "inet", "foreign")
	testutil.Eventually(n.t, func() error {
		if err := n.all(pod.NetNS, cached, n.served()...); err != nil {
			return fmt.Errorf("the way is back: %w", err)
		}
		return nil
	})
	return lost
}
