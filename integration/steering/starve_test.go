package steering

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// starve runs a load against an agent that may run for quota in every 100 ms, and says what became of it.
func (n *node) starve(p *pod, g *testutil.Cgroup, quota time.Duration, qps int, d time.Duration) (outcome, int) {
	n.t.Helper()
	names := hits(200)
	n.warm(p, names)
	series := fmt.Sprintf(`neardns_lease_changes_total{address="%s",protocol="udp"}`, steering4)
	before := n.metric(series)
	g.LimitCPU(quota)
	stop := make(chan struct{})
	time.AfterFunc(d, func() { close(stop) })
	got := load{from: p.NetNS, server: n.all()[0].server(), qps: qps, sockets: 10, names: names}.run(n.t, stop)
	g.LimitCPU(0)
	return got, int(n.metric(series) - before)
}

func TestMeasureStarved(t *testing.T) {
	if os.Getenv("MEASURE") == "" {
		t.Skip("x")
	}
	for _, qps := range []int{300, 1000} {
		for _, spin := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d qps spin %t", qps, spin), func(t *testing.T) {
				n := newNode(t, setup{})
				p := n.addPod(nil)
				g := testutil.NewCgroup(t, "cpu")
				bin := program("neardns-agent")
				if b := os.Getenv("AGENT"); b != "" {
					bin = b
				}
				n.agent = n.Host.StartIn([]*testutil.Cgroup{g}, bin, "node", "--config", n.configFile())
				n.awaitReady()
				if spin {
					n.Host.StartIn([]*testutil.Cgroup{g}, "sh", "-c", "while :; do :; done")
				}
				got, changes := n.starve(p, g, 5*time.Millisecond, qps, 20*time.Second)
				t.Logf("%v; lease changes %d", got, changes)
			})
		}
	}
}
