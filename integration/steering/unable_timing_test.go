//go:build timing

package steering

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestTimingUnableToAsk measures how soon pods' fresh names are answered if the node is kept from querying kube-dns.
//
// State: TestUnableToAsk (here). Bound: TestLeaseGoesWithAsking (agent/internal/node).
func TestTimingUnableToAsk(t *testing.T) {
	for _, h := range hardships() {
		t.Run(h.name, func(t *testing.T) {
			n := newNode(t, setup{families: testutil.Dual})
			p := n.addPod(nil)
			n.startAgent()
			n.wantSteered(p.client(), "before", n.all()...)
			h.begin(n)
			took, lost := n.untilAnswered(p, h.bound, n.all()...)
			t.Logf("%s: fresh names are answered after %v, %d queries lost", h.name, took, lost)
		})
	}
}

// Evidence from the pod's own end comes within this time (README).
const evidenceLimit = 15 * time.Second

// TestTimingLatePolicyAtTheLink measures how soon a pod is answered by kube-dns if a policy at its own link keeps it from the agent.
//
// State: TestLatePolicyAtTheLink (here). Bound: the tests of agent/internal/node/evidence.
func TestTimingLatePolicyAtTheLink(t *testing.T) {
	n := newNode(t, setup{families: testutil.Dual, proxy: testutil.NFTables})
	p := n.addPod(nil)
	n.startAgent()
	ats := targets(n.ClusterDNS()...)
	n.wantSteered(p.client(), "no policy", ats...)
	n.refuseAtLink(p)
	took, lost := n.untilAnswered(p, evidenceLimit, ats...)
	t.Logf("fresh names are answered after %v, %d queries lost", took, lost)
}

// untilAnswered queries a fresh name five times a second at every target until each has been answered three times in a row by kube-dns
// itself. It returns when the first of these was queried, and how many queries were lost before.
func (n *node) untilAnswered(p *pod, bound time.Duration, ats ...target) (took time.Duration, lost int) {
	n.t.Helper()
	began := time.Now()
	var mu sync.Mutex // guards took and lost
	var wg sync.WaitGroup
	for _, at := range ats {
		wg.Go(func() {
			since, failed := n.askUntilDirect(p, at, began.Add(bound+patience))
			mu.Lock()
			defer mu.Unlock()
			lost += failed
			if since.IsZero() {
				n.t.Errorf("%s: no answer by kube-dns within %v", at, bound+patience)
				return
			}
			took = max(took, since.Sub(began))
		})
	}
	wg.Wait()
	if limit := bound + slack; took > limit {
		n.t.Errorf("answered after %v, want within %v", took, limit)
	}
	return took.Round(10 * time.Millisecond), lost
}

func (n *node) askUntilDirect(p *pod, at target, end time.Time) (since time.Time, lost int) {
	type result struct {
		asked  time.Time
		ok     bool
		direct bool
	}
	var mu sync.Mutex // guards results
	var results []*result
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for ; time.Now().Before(end); <-tick.C {
		wg.Go(func() {
			r := &result{asked: time.Now()}
			answer, err := p.client().ask(at, freshName(), 2*time.Second)
			r.ok = err == nil
			r.direct = r.ok && p.client().direct(answer)
			mu.Lock()
			defer mu.Unlock()
			results = append(results, r)
		})
		mu.Lock()
		slices.SortFunc(results, func(a, b *result) int { return a.asked.Compare(b.asked) })
		running := 0
		lost = 0
		for _, r := range results {
			switch {
			case !r.direct:
				running, since = 0, time.Time{}
			case running == 0:
				since = r.asked
				fallthrough
			default:
				running++
			}
			if !r.ok {
				lost++
			}
		}
		mu.Unlock()
		if running >= 3 && time.Since(since) > 2*time.Second { // those asked before have ended
			return since, lost
		}
	}
	return time.Time{}, lost
}

// TestTimingKubeDNSOutage: with kube-dns dead for all, no lease changes for as long as a restart takes, and each query is answered. The agent
// withdraws its leases for a moment once it could not query for 10 s, in case that kube-dns answers pods.
//
// State: TestKubeDNSOutageKeepsLeases (here). Bound: TestLeaseGoesWithAsking (agent/internal/node).
func TestTimingKubeDNSOutage(t *testing.T) {
	outages(t, func(t *testing.T, n *node, f *traffic) {
		n.wantReady("outage", false, "cannot query")
		for began := time.Now(); time.Since(began) < 8*time.Second; {
			f.more(100)
			if held := len(n.leases()); held != len(n.all()) {
				t.Fatalf("%d leases after %v, want %d", held, time.Since(began), len(n.all()))
			}
		}
		f.allAnswered()
	})
}
