package pods

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/agent/internal/pods/podstate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestTendBehindLock has three pending pods while another program holds iptables' lock. Reconcile waits for the lock once, not once for
// each pod, because the same loop repairs everything else. The pods are steered when the lock is free.
func TestTendBehindLock(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "xtables.lock")
	t.Setenv("XTABLES_LOCKFILE", lock)
	n := newNode(t, testutil.PTP)
	stats := new(iptables.Stats)
	n.backend = rules.OfVariant(iptables.Legacy, stats)
	for i := range 3 {
		id := fmt.Sprintf("pod%d", i)
		write(t, n.dir, fileOf(n.AddPod(id), id, "eth0", decisions(podfile.Pending, r4)))
	}
	release := hold(t, lock)
	n.FallbackOnly([]steer.Redirect{r4})
	counts, err := n.Reconcile(t.Context(), yes, false)
	if !errors.Is(err, iptables.ErrLocked) || counts[Pending] != 3 {
		t.Errorf("%v, %v", counts, err)
	}
	testutil.Equal(t, "waits for the lock", 1, stats.Locked.Load())
	release()
	n.reconcile(yes, false, map[string]int{Steered: 3})
}

// hold takes iptables' lock, as another program does for a big restore.
func hold(t *testing.T, lock string) (release func()) {
	t.Helper()
	f, err := os.Create(lock)
	testutil.Must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	testutil.Must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	return func() { testutil.Must(t, f.Close()) }
}

// TestVerdictsBehindLock has trials end while another program holds iptables' lock. One of them waits for the lock; the others record
// their verdicts without it, so that neither they nor the loop, which needs the same mutex, wait once a pod. A pod that would have to be
// bypassed keeps rules and file as they are. All of it is made up for when the lock is free.
func TestVerdictsBehindLock(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "xtables.lock")
	t.Setenv("XTABLES_LOCKFILE", lock)
	n := newNode(t, testutil.PTP)
	stats := new(iptables.Stats)
	n.backend = rules.OfVariant(iptables.Legacy, stats)
	add := func(id string, untried bool) Trial {
		f := fileOf(n.AddPod(id), id, "eth0", decisions(podfile.Pending, r4))
		f.Decisions[0].Untried = untried
		write(t, n.dir, f)
		return Trial{file: f, paths: []triedPath{{f.Decisions[0], podstate.Status{State: podstate.Untried}}}}
	}
	verdict := func(trial Trial, e podstate.Event) error {
		s := signal{event: e, reason: "tried"}
		if e == podstate.TrialUnanswered {
			s.protocols = []string{"UDP"}
		}
		return n.takeResults(trial, map[steer.Redirect]signal{r4: s}, yes)
	}
	old := add("old", false)
	n.reconcile(yes, false, map[string]int{Steered: 1})
	old.paths[0].Status.State = podstate.Steered
	young := []Trial{add("a", true), add("b", true), add("c", true)}

	release := hold(t, lock)
	if err := verdict(young[0], podstate.TrialAnswered); !errors.Is(err, iptables.ErrLocked) {
		t.Errorf("the first verdict: %v", err)
	}
	testutil.Must(t, verdict(young[1], podstate.TrialAnswered))
	testutil.Must(t, verdict(young[2], podstate.TrialUnanswered))
	if err := verdict(old, podstate.TrialUnanswered); !iptables.Busy(err) {
		t.Errorf("the steered pod's verdict: %v", err)
	}
	testutil.Equal(t, "waits for the lock", 1, stats.Locked.Load())
	for id, want := range map[string]podstate.State{
		"a": podstate.Waiting, "b": podstate.Waiting, "c": podstate.Bypassed, "old": podstate.Steered,
	} {
		testutil.Equal(t, id, want, StateOf(n.states(id, "eth0")[0]))
	}

	release()
	n.reconcile(yes, false, map[string]int{Steered: 3, Bypassed: 1})
	testutil.Must(t, verdict(old, podstate.TrialUnanswered))
	n.reconcile(yes, false, map[string]int{Steered: 2, Bypassed: 2})
}
