//go:build timing

package nodelocal_test

import (
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestTimingKill: a kill of either cache costs what is in flight, and what is queried until the kernel has closed its last socket.
// State: TestMoveAndBack, TestKilledThenRolledBack, TestTwoDaemonSets: kube-dns or the next one answers then.
func TestTimingKill(t *testing.T) {
	for _, c := range append([]cell{{testutil.IPv4, testutil.IPTables, ""}, {testutil.IPv4, testutil.NFTables, ""}}, onIPTables(testutil.IPv4)...) {
		t.Run(c.String(), func(t *testing.T) {
			n := c.node(t)
			pod := n.pod()
			p := n.agent()
			n.awaitLeases(p, n.served()...)
			load := n.startLoad(pod.NetNS, n.served()...)
			defer load.end()
			load.kill(t, p, "ours killed")
			if c.backend != "" {
				return // the stock cache's rules stand before ours in iptables
			}
			stock := n.stock()
			testutil.Eventually(t, func() error { return n.all(pod.NetNS, cached, n.served()...) })
			load.phase(t, "stock started", 200)
			load.kill(t, stock, "stock killed, our switch left behind")
		})
	}
}

// kill kills a server and counts what that costs.
func (l *load) kill(t *testing.T, p *testutil.Process, name string) {
	t.Helper()
	begun := time.Now()
	p.Kill()
	most := openMost + int(4*pace*time.Since(begun).Seconds())
	if _, lost := l.phase(t, name, 200); lost > most {
		t.Errorf("%s: %d lost, want %d at most", name, lost, most)
	}
}
