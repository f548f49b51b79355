package steering

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// successor starts a second agent beside the running one. Its pod's folder marks it as newer.
func (n *node) successor(pod string, args ...string) *testutil.Process {
	n.t.Helper()
	dir := n.path(pod)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		n.t.Fatal(err)
	}
	return n.Host.Start(append([]string{program("neardns-agent"), "node", "--config", n.configFile(), "--pod-dir", dir}, args...)...)
}

// ready is what the kubelet is told of one pod's agent.
func (n *node) ready(pod string) error {
	n.t.Helper()
	code, out, stderr := n.run("ready", "--pod-dir", n.path(pod))
	if code != 0 {
		return fmt.Errorf("exit code %d: %s%s", code, out, stderr)
	}
	return nil
}

func (n *node) awaitExit(p *testutil.Process, code int) {
	n.t.Helper()
	select {
	case <-p.Exited():
	case <-time.After(patience):
		n.t.Fatalf("process %d did not end:\n%s", p.PID(), p.Output())
	}
	if got := p.Cmd.ProcessState.ExitCode(); got != code {
		n.t.Errorf("exit code %d, want %d:\n%s", got, code, p.Output())
	}
}

// TestSuccessorLosesNothing rolls three agents over one another under load, as a DaemonSet with maxSurge does.
func TestSuccessorLosesNothing(t *testing.T) {
	n := newNode(t, setup{families: testutil.Dual})
	p := n.addPod(nil)
	n.agent = n.successor("pod0")
	n.awaitReady()
	n.wantSteered(p.client(), "up", n.all()...)
	if err := n.ready("pod0"); err != nil {
		t.Error(err)
	}

	f := n.startTraffic(p, freshName(), 500)
	for i := range 3 {
		old := n.agent
		pod := fmt.Sprintf("pod%d", i+1)
		n.agent = n.successor(pod)
		testutil.Eventually(t, patience, func() error { return n.ready(pod) })
		n.awaitExit(old, 0)
		s := n.status()
		if s.Agent == nil || !s.Agent.Ready || s.Agent.Handover == nil || !strings.Contains(s.Agent.Handover.From, fmt.Sprintf("process %d ", old.PID())) {
			t.Errorf("status after the hand-over: %+v", s.Agent)
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
	n.wantSteered(p.client(), "after three hand-overs", n.all()...)
}
