package steering

import (
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestNeighbourIsNotServed: a host next to the node that sends our addresses there, as any host on the segment may, never gets an
// answer from the cache, whether or not the agent runs. At the local address it gets what it gets at the cluster DNS address,
// from kube-dns; the same query is answered to a pod by the cache.
func TestNeighbourIsNotServed(t *testing.T) {
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
				unserved := func(when string) {
					t.Helper()
					for _, at := range targets(ours...) {
						var serials []int
						name := freshName()
						for range 2 {
							// No pod table puts a steering address's answer right: it comes from the cluster DNS address.
							if a, err := testutil.Ask(n.Neighbour, at.server(), name, dns.TypeA, at.network, testutil.AskOptions{Timeout: 200 * time.Millisecond}); err == nil {
								serials = append(serials, a.Serial)
							}
						}
						if len(slices.Compact(serials)) < len(serials) {
							t.Errorf("%s: %s answered a host beside the node from the cache", when, at)
						}
					}
				}
				unserved("never started")
				n.startAgent()
				n.wantSteered(p.client(), "up", n.all()...)
				unserved("up")
				if refused := n.status().Counters[steer.CounterUplink].Packets; refused == 0 {
					t.Error("nothing was refused: did the questions come at all?")
				}
				n.wantFallback(client{ns: n.Neighbour}, "up", targets(n.locals()...)...)
				n.agent.Kill()
				unserved("killed")
			})
		}
	}
}
