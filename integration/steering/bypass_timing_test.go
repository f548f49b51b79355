//go:build timing

package steering

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// A bypassed pod comes back within this time after its path works again, and removed files of the BPF file system are noticed within the
// other (docs).
const (
	returnLimit = 15 * time.Second
	noticeLimit = 20 * time.Second
	policyLimit = 10 * time.Second // a policy ends a pod's kernel hits (docs/kernel-hits.md)
)

var (
	randomCuts = flag.Int("steering.cuts", 10, "cuts of each pod in TestTimingRandomCuts")
	cutsSeed   = flag.Uint64("steering.seed", 0, "seed of TestTimingRandomCuts; 0 draws one")
)

// TestTimingRandomCuts measures how soon pods are served by the agent again after cuts of random length, ten pods at a time, by a filter of
// the host or at their links. The server outside of the cluster, whose names the pods query too, in turn answers, takes longer for it than
// the pods' own tables wait, or is silent.
//
// State: TestEgressPolicy, TestLatePolicyAtTheLink. Bound: TestModel (agent/internal/pods/podstate).
func TestTimingRandomCuts(t *testing.T) {
	seed := *cutsSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat with: -steering.seed %d -steering.cuts %d", seed, *randomCuts)
	r := rand.New(rand.NewPCG(seed, 0))
	const config = "upstreams: {external: [\"198.51.100.53\"]}\n"
	n := newNode(t, setup{families: testutil.Dual, proxy: testutil.NFTables, external: true, config: config})
	n.startAgent()
	var pods [10]*pod
	for i := range pods {
		pods[i] = n.addPod(nil)
		n.wantSteered(pods[i].client(), "no cut", n.all()...)
	}
	upstreams := []testutil.Behaviour{{}, {Delay: 3 * time.Second}, {Drop: true}}
	names, filters := []string{"good", "slow", "silent"}, []string{"filter of the host", "filter at the link"}
	drops := []func(*pod) func(){n.refuse, n.refuseAtLink}
	var mu sync.Mutex
	var longest time.Duration
	for i := range *randomCuts {
		n.External.Behave(upstreams[i%len(upstreams)])
		var wg sync.WaitGroup
		for _, p := range pods {
			length, filter := time.Second+time.Duration(r.Int64N(int64(59*time.Second))), r.IntN(len(drops))
			wg.Go(func() {
				took := n.cut(p, drops[filter], length)
				mu.Lock()
				defer mu.Unlock()
				what := fmt.Sprintf("%s, upstream %s, %s for %s: back after %s", p.name, names[i%len(names)], filters[filter],
					length.Round(time.Millisecond), took.Round(10*time.Millisecond))
				if t.Log(what); took > returnLimit+slack {
					t.Errorf("%s, want within %s", what, returnLimit+slack)
				}
				longest = max(longest, took)
			})
		}
		wg.Wait()
	}
	t.Logf("%d cuts: back after %s at the latest", *randomCuts*len(pods), longest.Round(10*time.Millisecond))
}

// cut drops a pod's queries to the agent for a time, and returns how long after that the agent answers it at every address again. The pod
// goes on with queries, some of them for names outside of the cluster.
func (n *node) cut(p *pod, drop func(*pod) func(), length time.Duration) (back time.Duration) {
	n.t.Helper()
	allow := drop(p)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	all := n.all()
	for i, end := 0, time.Now().Add(length); time.Now().Before(end); i++ {
		<-tick.C
		_, _ = p.client().ask(all[i%len(all)], freshName(), time.Second) // the first ones are lost
		_, _ = p.client().ask(all[0], fmt.Sprintf("name%d.example.", i), testutil.Silence)
	}
	allow()
	from := time.Now()
	for _, at := range all {
		testutil.Eventually(n.t, func() error { return p.client().steered(at) })
	}
	return time.Since(from)
}

// TestTimingEgressPolicy counts the queries that a pod loses when a policy comes that lets it reach only kube-dns: at most two at each
// address and protocol, within the time that the pod's own table trusts the path (2 s), so that the switch sees them. It loses no more when
// the agent is stopped for longer than the kernel waits between two of a client's own queries as trials. Others lose none.
//
// State: TestEgressPolicy. Bound: TestEvidenceOverAPause (agent/internal/node/evidence).
func TestTimingEgressPolicy(t *testing.T) {
	n, p := newServed(t, setup{families: testutil.Dual, proxy: testutil.IPTables})
	var others atomic.Int64
	end := n.crowd(50, func(p *pod, at target, err error) {
		if others.Add(1); err != nil {
			t.Errorf("another pod's query to %s is lost: %s: %v", at, p.name, err)
		}
	})
	n.wantSteered(p.client(), "no policy", n.all()...)
	n.refuse(p)
	n.status() // the last query that arrived is a moment ago
	const timeout = 900 * time.Millisecond
	count := func(when string, maxLost int) {
		var wg sync.WaitGroup
		for _, at := range n.all() {
			wg.Go(func() {
				for lost := 0; ; lost++ {
					err := p.client().fellBack(at, timeout)
					if err == nil {
						return
					} else if lost == maxLost {
						t.Errorf("%s: %d queries are lost: %v", when, lost+1, err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	count("policy comes", 2)
	n.wantBypassed(p)
	end() // a stopped agent takes what is on its way with it
	t.Logf("other pods: %d queries", others.Load())
	n.lapse(func() { time.Sleep(steer.Hold(0)) })
	n.awaitReady()
	count("agent stopped and continued", 0)
}

// TestTimingKernelHitsFilesRemoved measures how soon the kernel answers a pod's hits again after the level's files were removed.
//
// State: TestKernelHitsFilesRemoved. Bound: none, the agent attaches again when it reads the pods' files, each 10 s next to their events.
func TestTimingKernelHitsFilesRemoved(t *testing.T) {
	n, p, at, name := newHot(t)
	n.removeLevel()
	from := time.Now()
	n.heat(p, at, name)
	if took, limit := time.Since(from), noticeLimit+slack; took > limit {
		t.Errorf("the kernel answers again after %s, want within %s", took, limit)
	}
}
