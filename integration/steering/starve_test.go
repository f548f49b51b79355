package steering

import (
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestStarvedAgentLosesItsLeases lets the agent share 1 ms of processor time in every 100 ms with a program that never rests. Its leases
// expire, and they are granted again if the agent has its processor time back.
func TestStarvedAgentLosesItsLeases(t *testing.T) {
	g := testutil.NewCgroup(t, "cpu")
	n := newNode(t, setup{})
	p := n.addPod(nil)
	n.startIn(g)
	testutil.Eventually(t, func() error {
		leases := n.leases()
		return testutil.ErrorIf(len(leases) < len(n.all()), "leases before the agent starves: %+v", leases)
	})
	n.reload("lease: {renew: 150ms, lifetime: 800ms}\n", true) // the product's default; the tests' own is longer
	n.Host.StartIn([]*testutil.Cgroup{g}, "sh", "-c", "while :; do :; done")

	g.LimitCPU(time.Millisecond)
	testutil.Eventually(t, func() error {
		leases := n.leases()
		return testutil.ErrorIf(len(leases) >= len(n.all()), "a starved agent has its leases: %+v", leases)
	})
	g.LimitCPU(0)
	n.reload("", true)
	n.wantSteered(p.client(), "processor time is back", n.all()...)
}
