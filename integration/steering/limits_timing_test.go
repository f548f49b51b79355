//go:build timing

package steering

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/neardns/neardns/integration/bench/procstat"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestTimingProposalLimits: within the proposal's limits a pod that sends 1,000 queries a second for 12 s, each tenth for a name that is in
// no cache, loses at most five times what a control of 200 a second to kube-dns's own address loses meanwhile.
//
// State: TestProposalLimits. Bound: TestQuietPodIsServedInAFlood (internal/dns/limit).
func TestTimingProposalLimits(t *testing.T) {
	n, group := newLimited(t)
	p := n.addPod(nil)
	n.wantServed("within the limits", p)
	names := hits(90)
	n.warm(p, names)
	n.warm(p, names) // an entry is offloaded at its second hit
	for len(names) < 12_000 {
		for range 10 {
			names = append(names, fmt.Sprintf("ttl-5.miss%d.svc.cluster.local", len(names)))
		}
		names = append(names, names[:90]...)
	}
	stop := make(chan struct{})
	time.AfterFunc(12*time.Second, func() { close(stop) })
	before := n.kernelAnswers()
	var got, control outcome
	var wg sync.WaitGroup
	wg.Go(func() {
		kubeDNS := load{from: p.NetNS, server: netip.AddrPortFrom(n.KubeDNSAddrs()[0], 53), qps: 200, sockets: 10, names: hits(90)}
		control = kubeDNS.run(t, stop)
	})
	got = load{from: p.NetNS, server: n.all()[0].server(), qps: 1000, sockets: 10, names: names}.run(t, stop)
	wg.Wait()
	t.Logf("%v; the kernel answered %d; the control: %v", got, n.kernelAnswers()-before, control)
	if got.lost() > 5*control.lost() || got.wrong > 0 {
		t.Errorf("lost %d of %d, %d wrong; the control lost %d of %d", got.lost(), got.sent, got.wrong, control.lost(), control.sent)
	}
	n.wantAlive(group)
}

// TestTimingIdle: without queries, the agent of a new installation takes at most 1.5 % of a core (D-088 has what it took).
//
// State: TestGrid (pkg/tick). Bound: TestGrid (pkg/tick): all loops wait on one grid.
func TestTimingIdle(t *testing.T) {
	for _, families := range []testutil.Families{testutil.IPv4, testutil.Dual} {
		t.Run(families.String(), func(t *testing.T) {
			n := newNode(t, setup{families: families, proven: true, install: true})
			p := n.addPod(nil)
			n.startAgent()
			n.wantServed("at rest", p)
			<-time.After(15 * time.Second) // a new pod is tried twice a second for 10 s
			var shares []float64
			for range 5 {
				before, err := procstat.CPU(n.agent.PID())
				testutil.Must(t, err)
				begin := time.Now()
				<-time.After(10 * time.Second)
				after, err := procstat.CPU(n.agent.PID())
				testutil.Must(t, err)
				shares = append(shares, 100*(after-before).Seconds()/time.Since(begin).Seconds())
			}
			slices.Sort(shares)
			t.Logf("%.2f %% of a core [%.2f, %.2f], %d MiB resident, %d of its own", shares[2], shares[0], shares[4],
				memory(t, n.agent.PID(), "VmRSS")>>20, memory(t, n.agent.PID(), "RssAnon")>>20)
			if shares[2] > 1.5 {
				t.Errorf("without queries it takes %.2f %% of a core", shares[2])
			}
		})
	}
}
