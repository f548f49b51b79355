package steering

import (
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestNeighbourGetsNoAnswer: a host beside the node that sends our addresses there, as anybody on the segment may, finds no
// resolver; the same question is answered to a pod.
func TestNeighbourGetsNoAnswer(t *testing.T) {
	for _, s := range []setup{
		{families: testutil.Dual, proxy: testutil.IPTables, attach: testutil.BridgeCNI},
		{families: testutil.Dual, proxy: testutil.NFTables},
	} {
		for _, intercept := range []bool{false, true} {
			t.Run(s.String()+map[bool]string{true: "/intercept", false: ""}[intercept], func(t *testing.T) {
				t.Parallel()
				make := newNode
				if intercept {
					make = intercepting
				}
				n := make(t, s)
				p := n.addPod(nil)
				ours := n.locals()
				for i, a := range n.ClusterDNS() {
					ours = append(ours, map[bool]target{true: {addr: steering4}, false: {addr: steering6}}[a.Is4()].addr)
					for _, to := range []int{i, i + len(n.ClusterDNS())} {
						n.Neighbour.AddRoute(testutil.Host(ours[to]), n.HostAddrs()[i], "seg0")
					}
				}
				silent := func(when string) {
					t.Helper()
					for _, at := range targets(ours...) {
						a, err := testutil.Ask(n.Neighbour, at.server(), freshName(), dns.TypeA, at.network, testutil.AskOptions{Timeout: 200 * time.Millisecond})
						if err == nil {
							t.Errorf("%s: %s answered a host beside the node: %s", when, at, a)
						} else if !isTimeout(err) {
							t.Errorf("%s: %s: %v, want silence", when, at, err)
						}
					}
				}
				silent("never started")
				n.startAgent()
				n.wantSteered(p.client(), "up", n.all()...)
				silent("up")
				if dropped := n.status().Counters[steer.CounterUplinkDrop].Packets; dropped == 0 {
					t.Error("nothing was dropped: did the questions come at all?")
				}
				n.agent.Kill()
				silent("killed")
			})
		}
	}
}
