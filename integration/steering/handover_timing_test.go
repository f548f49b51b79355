//go:build timing

package steering

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestTimingSuccessorLosesNothing rolls three agents over one another under load, as a DaemonSet with maxSurge does.
// State: TestSuccessors (this package). Bound: none of ours; no query at all is lost.
func TestTimingSuccessorLosesNothing(t *testing.T) {
	n := newNode(t, setup{families: testutil.Dual, config: calm})
	p := n.addPod(nil)
	n.agent = n.successor("pod0")
	n.awaitReady()
	n.wantSteered(p.client(), "up", n.all()...)
	if err := n.ready("pod0"); err != nil {
		t.Error(err)
	}

	hot, begun := freshName(), time.Now()
	f := n.startTimedTraffic(p, hot, 500)
	f.more(1)
	for i := range 3 {
		old := n.agent
		pod := fmt.Sprintf("pod%d", i+1)
		n.agent = n.successor(pod)
		testutil.Eventually(t, func() error { return n.ready(pod) })
		n.awaitExit(old, 0)
		s := n.status()
		if s.Agent == nil || !s.Agent.Ready || s.Agent.Handover == nil || !strings.Contains(s.Agent.Handover.From, fmt.Sprintf("process %d ", old.PID())) {
			t.Errorf("status after the handover: %+v", s.Agent)
		}
		if s.Agent != nil && s.Agent.Handover != nil {
			t.Logf("handed over in %s", s.Agent.Handover.Took)
		}
		if text := n.agent.Output(); strings.Contains(text, "level=ERROR") {
			t.Errorf("the successor has faults:\n%s", text)
		}
	}
	asked, lost, gap := f.end()
	t.Logf("%d questions, %d lost, longest gap %v", asked, lost, gap)
	if lost > 0 || asked < 200 {
		t.Errorf("%d of %d questions lost", lost, asked)
	}
	if times, kept := n.DNS.Asked(hot), time.Since(begun)/(20*time.Second); times > 1+int(kept) { // its TTL is 30 s
		t.Errorf("kube-dns was asked %d times for the one name: the cache did not go along, or a question fell back", times)
	}
	n.wantSteered(p.client(), "after three handovers", n.all()...)
}

// TestTimingEndAndStart ends the agent under load and starts it again, by SIGTERM and by SIGKILL.
// State: TestEndAndStart (this package). Bound: what the kernel takes to end a process (D-016).
func TestTimingEndAndStart(t *testing.T) {
	for name, end := range map[string]func(p *testutil.Process){
		"terminated": func(p *testutil.Process) {
			if err := p.Terminate(patience); err != nil {
				t.Errorf("SIGTERM: %v", err)
			}
		},
		"killed": (*testutil.Process).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, setup{families: testutil.Dual})
			p := n.addPod(nil)
			n.startAgent()
			f := n.startTimedTraffic(p, freshName(), 260)
			f.more(100)
			begun := time.Now()
			end(n.agent)
			ended := time.Now()
			f.more(200)
			n.startAgent()
			f.more(200)
			asked, lost, gap := f.end()
			t.Logf("%d questions, %d lost, longest gap %v", asked, lost, gap)
			if name == "killed" {
				f.lostAround(begun, ended)
			} else if lost > 0 {
				t.Errorf("%d of %d questions lost", lost, asked)
			}
			n.wantSteered(p.client(), "started again", n.all()...)
		})
	}
}

// TestTimingStoppedWithinAHandover freezes either process (SIGSTOP) at moments all over a handover, lets it go on, and expects the
// node with one of them in the end. What is lost is bounded by the lease's lifetime.
// State: TestStoppedWithinAHandover (this package). Bound: TestLostProbeIsNoLostLease (agent/internal/node).
func TestTimingStoppedWithinAHandover(t *testing.T) {
	n := newNode(t, setup{families: testutil.IPv4})
	p := n.addPod(nil)
	n.agent = n.successor("pod0")
	n.awaitReady()
	const rate = 260
	for i := range 6 {
		old := n.agent
		pod := fmt.Sprintf("pod%d", i+1)
		f, pauses := n.startTimedTraffic(p, freshName(), rate), n.pauses(p.NetNS)
		f.more(20)
		next := n.successor(pod)
		which, who := old, "the holder"
		if i%2 == 1 {
			which, who = next, "the successor"
		}
		// Not a wait for anything: the moment is what is tried. A start takes some 40 ms to the first message.
		moment := time.Duration(25+8*i) * time.Millisecond
		<-time.After(moment)
		which.Stop()
		<-time.After(1500 * time.Millisecond)
		which.Cont()
		n.agent = next
		testutil.Eventually(t, func() error {
			if err := n.ready(pod); err != nil {
				return fmt.Errorf("%w\n%s\n%s", err, old.Output(), next.Output())
			}
			return nil
		})
		n.awaitExit(old, 0)
		asked, lost, gap := f.end()
		t.Logf("%s stopped after %v: %d questions, %d lost, longest gap %v", who, moment, asked, lost, gap)
		if most := int64(rate); lost > most || gap > lifetime+slack+pauses() {
			t.Errorf("%s stopped after %v: %d lost of %d, longest gap %v", who, moment, lost, asked, gap)
		}
		n.wantSteered(p.client(), who+" stopped", n.all()...)
	}
}

// TestTimingSuccessorDies kills the successor within the steps of a handover. If it does not have the node by then, the active agent goes
// on, and keeps none of its dead successors' descriptors.
// State: TestSuccessorDies (this package). Bound: TestLostProbeIsNoLostLease (agent/internal/node).
func TestTimingSuccessorDies(t *testing.T) {
	n := newNode(t, setup{families: testutil.IPv4})
	p := n.addPod(nil)
	n.agent = n.successor("pod0")
	n.awaitReady()
	files := n.openFiles()
	for i, step := range []string{"handover begins", "successor serves on the same sockets", "handed over", "handover begins", "successor serves on the same sockets"} {
		f, pauses := n.startTimedTraffic(p, freshName(), 260), n.pauses(p.NetNS)
		f.more(20)
		from := len(n.agent.Output())
		next := n.successor(fmt.Sprintf("pod%d", i+1))
		testutil.Eventually(t, func() error {
			if !strings.Contains(n.agent.Output()[from:], step) {
				return fmt.Errorf("no %q:\n%s", step, next.Output())
			}
			return nil
		})
		begun := time.Now()
		next.Kill()
		within := int64(260 * time.Since(begun).Seconds()) // what came until the kernel had ended it (D-016)
		f.more(100)
		had := "before it had the node"
		select {
		case <-n.agent.Exited():
			had = "after it had taken the node over"
			n.agent = n.successor(fmt.Sprintf("again%d", i+1))
		case <-time.After(patience / 5): // one that has handed over ends within that time
		}
		n.awaitReady()
		asked, lost, gap := f.end()
		t.Logf("killed at %q, %s: %d questions, %d lost, longest gap %v", step, had, asked, lost, gap)
		if lost > 20+within || gap > lifetime+slack+pauses() {
			t.Errorf("killed at %q, %s: %d of %d questions lost, longest gap %v", step, had, lost, asked, gap)
		}
		n.wantSteered(p.client(), "successor killed", n.all()...)
	}
	testutil.Eventually(t, func() error {
		if now := n.openFiles(); now > files+8 {
			return fmt.Errorf("%d files are open, %d were when the first agent began", now, files)
		}
		return nil
	})
}
