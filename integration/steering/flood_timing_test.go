//go:build timing

package steering

import (
	"testing"
	"time"
)

// TestTimingFlood counts what a pod loses of its hits during another pod's flood of 20,000 a second: a third at most on a busy machine,
// where an agent without bounds answers none.
//
// State: TestFlood (here). Bound: none of ours; the flood and the agent share the machine.
func TestTimingFlood(t *testing.T) {
	flooded(t, 20000, func(n *node, quiet *pod, names []string) {
		stop := make(chan struct{})
		time.AfterFunc(3*time.Second, func() { close(stop) })
		got := load{from: quiet.NetNS, server: n.all()[0].server(), qps: 500, sockets: 10, names: names}.run(t, stop)
		t.Logf("%v", got)
		if got.lost()*3 > got.sent || got.wrong > 0 {
			t.Errorf("another pod lost %d of %d hits, %d were wrong", got.lost(), got.sent, got.wrong)
		}
	})
}
