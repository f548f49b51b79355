//go:build timing

package steering

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// adoptedWithin is how long after it serves an agent has steered so many pods that ran before it: it starts five a second (D-084).
func adoptedWithin(pods int) time.Duration {
	return 2*time.Second + time.Duration(pods)*time.Second/5
}

// TestTimingAdoptUnderLoad: 50 pods send 500 queries per second, over sockets and connections that stay, while the agent comes, is killed
// half-way, comes back, and pods end; then neardns is removed from the node.
//
// State: TestAdoptAgain. Bound: TestPace (agent/internal/pods/adoption).
func TestTimingAdoptUnderLoad(t *testing.T) {
	const count, perPod = 50, 10
	n := newNode(t, setup{attach: testutil.PTP, proven: true, adopt: true})
	pods := n.addRunningPods(count, nil)
	ending, staying := pods[:10], pods[10:]
	stop, stopEnding := make(chan struct{}), make(chan struct{})
	results := make([]outcome, count)
	var wg, ended sync.WaitGroup
	endEnding := sync.OnceFunc(func() {
		close(stopEnding)
		ended.Wait()
	})
	end := sync.OnceFunc(func() {
		close(stop)
		wg.Wait()
	})
	t.Cleanup(endEnding)
	t.Cleanup(end)
	for i, p := range pods {
		group, until := &wg, stop
		if i < len(ending) {
			group, until = &ended, stopEnding
		}
		group.Go(func() {
			names := []string{"a.default.svc.cluster.local", "b.default.svc.cluster.local", fmt.Sprintf("own%d.default.svc.cluster.local", i)}
			results[i] = load{from: p.NetNS, server: n.Service(true), qps: perPod, sockets: 2, names: names}.run(t, until)
		})
	}
	traffic := n.startTimedTraffic(staying[0], freshName(), 26) // and over TCP
	traffic.more(26)

	// The agent is killed as soon as the first pod is steered: others have a file, some have none.
	n.launchAgent()
	testutil.Eventually(t, func() error { return staying[0].adopted(podfile.Steered) })
	killed := time.Now()
	n.agent.Kill()
	<-n.agent.Exited()
	dead := time.Now()
	half := n.steeredOf(pods)
	begun := time.Now()
	n.launchAgent()
	var ready, took time.Duration
	var watched sync.WaitGroup
	watched.Go(func() {
		for time.Since(begun) < patience {
			if a, err := n.agentStatus(); err == nil && a.Ready {
				break
			}
			<-time.After(20 * time.Millisecond)
		}
		ready = time.Since(begun)
		for n.steeredOf(staying) < len(staying) && time.Since(begun) < patience {
			<-time.After(20 * time.Millisecond)
		}
		took = time.Since(begun)
	})
	endEnding()
	for i, p := range ending {
		p.delBy(i%2 == 0)
		p.Delete()
	}
	watched.Wait()
	t.Logf("%d pods were steered when the agent was killed; the next one served after %v, all %d were steered after %v", half,
		ready.Round(time.Millisecond), len(staying), took.Round(time.Millisecond))
	// How long a process takes to start is the machine's affair.
	if bound := adoptedWithin(len(pods))*testutil.Slowness() + slack; n.steeredOf(staying) < len(staying) || took-ready > bound {
		t.Errorf("%d of %d pods are steered %v after the agent serves, want all within %v", n.steeredOf(staying), len(staying), took-ready, bound)
	}
	n.awaitReady()
	traffic.more(52)
	for _, p := range ending {
		testutil.Eventually(t, func() error {
			return testutil.ErrorIf(exists(podfile.Path(n.stateDir(), p.container(), "eth0")), "%s, which ended, has a file", p.name)
		})
	}
	n.wantSteered(staying[1].client(), "adopted", n.all()...)
	testutil.Must(t, n.agent.Terminate(patience))
	n.prints(cli.Good, n.cleanup())
	traffic.more(26)
	end()
	asked, lost := traffic.result()
	var all outcome
	waited := slack / 10 // what came before the kill and waited for the agent to get CPU time is lost with it: as long as an answer took
	for _, got := range results {
		all.sent, all.answered, all.wrong = all.sent+got.sent, all.answered+got.answered, all.wrong+got.wrong
		all.unanswered = append(all.unanswered, got.unanswered...)
		waited = max(waited, got.percentile(100))
	}
	t.Logf("sent %d, lost %d, wrong %d, slowest %v; over connections that stay, too: %d asked, %d lost", all.sent, all.lost(), all.wrong,
		waited.Round(time.Millisecond), asked, lost)
	// A kill costs the queries that come until the kernel has ended the process (D-016); nothing else may cost one.
	for _, at := range all.unanswered {
		if at.Before(killed.Add(-waited)) || at.After(dead.Add(slack/10)) {
			t.Errorf("a question is lost %v after the kill, which took %v", at.Sub(killed).Round(time.Millisecond), dead.Sub(killed).Round(time.Millisecond))
		}
	}
	traffic.lostAround(killed, dead)
	if all.wrong > 0 || all.sent < 500 {
		t.Errorf("%d wrong answers of %d", all.wrong, all.sent)
	}
	for _, p := range staying {
		p.wantNoRules("cleaned up")
		a, err := testutil.Ask(p.NetNS, n.Service(true), freshName(), dns.TypeA, "udp", testutil.AskOptions{Timeout: time.Second})
		if err != nil || !p.client().direct(a) {
			t.Errorf("%s after cleanup: %v, %v", p.name, a, err)
		}
	}
	testutil.Equal(t, "files left", []string{}, n.files())
}

// steeredOf is how many of the pods are steered.
func (n *node) steeredOf(pods []*pod) (steered int) {
	for _, p := range pods {
		if p.adopted(podfile.Steered) == nil {
			steered++
		}
	}
	return steered
}
