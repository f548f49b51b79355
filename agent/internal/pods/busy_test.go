package pods

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

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
	f, err := os.Create(lock)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	testutil.Must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	n.FallbackOnly([]steer.Redirect{r4})
	counts, err := n.Reconcile(t.Context(), yes, false)
	if !errors.Is(err, iptables.ErrLocked) || counts[Pending] != 3 {
		t.Errorf("%v, %v", counts, err)
	}
	if waits := stats.Locked.Load(); waits != 1 {
		t.Errorf("the lock was waited for %d times", waits)
	}
	testutil.Must(t, f.Close())
	n.reconcile(yes, false, map[string]int{Steered: 3})
}
