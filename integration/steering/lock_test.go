package steering

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// lockedNode is a node with iptables-legacy's rules whose programs go by a lock of the test's own, so that no other test on
// this machine is held up. A test that uses one is not parallel: it sets the environment.
func lockedNode(t *testing.T) (n *node, hold func() (release func())) {
	t.Helper()
	path := t.TempDir() + "/xtables.lock"
	t.Setenv("XTABLES_LOCKFILE", path)
	n = newNode(t, setup{families: testutil.IPv4, proxy: testutil.IPTables, backend: string(iptables.Legacy)})
	return n, func() func() {
		t.Helper()
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
		if err == nil {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		}
		testutil.Must(t, err)
		t.Cleanup(func() { _ = f.Close() })
		return func() { _ = f.Close() }
	}
}

// flush takes a table's rules away without taking the lock, as a program does that runs where the lock's file is another.
func (n *node) flush(program, table string) {
	n.t.Helper()
	n.Host.Run("env", "XTABLES_LOCKFILE="+n.path("another.lock"), program, "-w", "-t", table, "-F")
}

// TestLockHeld has another program hold iptables' lock for longer than the agent and the plugin wait for it, while they have
// something to do: the switch is flushed, a pod comes, the configuration changes. kube-dns answers pods meanwhile, the reason is reported by
// log, status, readiness and metrics, and once the lock is free all is done that was to be done.
func TestLockHeld(t *testing.T) {
	n, hold := lockedNode(t)
	p := n.addPod(nil)
	n.startAgent()
	c := p.client()
	n.wantSteered(c, "before", n.all()...)

	release := hold()
	from := len(n.agent.Output())
	n.flush("iptables-legacy", "raw")
	n.awaitLog(from, iptables.ErrLocked.Error())
	n.wantReady("the switch is gone and cannot be put back", false, "no rule took the lease datagram")
	n.wantFallback(c, "the switch is gone and cannot be put back", n.all()...)
	n.awaitStatus(func(a *agentStatus) error {
		return testutil.ErrorIf(!strings.Contains(a.Faults["rules"], "lock"), "status %+v", a)
	})
	if locked := n.metric(`neardns_iptables_runs_total{result="locked"}`); locked < 1 {
		t.Errorf("%v runs are counted as locked", locked)
	}

	late := n.addPod(nil)
	testutil.Check(t, late.in(podfile.Pending), "a pod that came meanwhile")
	n.wantFallback(late.client(), "a pod that came meanwhile", targets(n.ClusterDNS()...)...)

	from = len(n.agent.Output())
	n.configure("stubDomains: {corp.example: [\"192.0.2.1\"]}\n")
	n.hup()
	n.awaitLog(from, refused) // each round of the agent's waits for the lock again
	release()
	n.awaitLog(from, reloaded)
	n.awaitReady()
	n.wantReady("the lock is free", true, "")
	n.wantSteered(c, "the lock is free", n.all()...)
	n.awaitStatus(func(s *agentStatus) error {
		return errors.Join(testutil.ErrorIf(len(s.Faults) > 0, "faults are left: %+v", s), late.in(podfile.Steered))
	})
	n.wantSteered(late.client(), "a pod that had to wait", n.all()...)
}

// TestStartBehindLock starts an agent while another program holds the lock. It waits instead of ending, and works by the rules
// that stand, though it may choose: that a lock is held proves nothing about what the kernel can do.
func TestStartBehindLock(t *testing.T) {
	n, hold := lockedNode(t)
	p := n.addPod(nil)
	n.startAgent()
	testutil.Must(t, n.agent.Terminate(testutil.Patience()))

	n.setup.backend = ""
	n.configure("")
	n.setup.backend = string(iptables.Legacy)
	release := hold()
	n.launchAgent()
	n.awaitLog(0, "another program holds iptables' lock")
	n.wantFallback(p.client(), "an agent that waits", n.all()...)
	select {
	case <-n.agent.Exited():
		t.Fatalf("the agent ended: %v\n%s", n.agent.Wait(), n.agent.Output())
	default:
	}
	release()
	n.awaitReady()
	n.wantSteered(p.client(), "the lock is free", n.all()...)
	if s := n.status(); s.Backend != string(iptables.Legacy) {
		t.Errorf("the rules are %s's now", s.Backend)
	}

	// One that is instructed to end while it waits does so.
	n.agent.Kill()
	hold()
	n.launchAgent()
	n.awaitLog(0, "another program holds iptables' lock")
	_ = n.agent.Terminate(testutil.Patience())
}
