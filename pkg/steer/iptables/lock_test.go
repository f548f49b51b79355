package iptables_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// ownLock makes iptables in this test use a lock file of its own, so that no other program on the machine has to wait.
func ownLock(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "xtables.lock")
	t.Setenv("XTABLES_LOCKFILE", path)
	return path
}

// hold takes iptables' lock, as another program does for a big restore.
func hold(t *testing.T, path string) (release func()) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	must(t, err)
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	t.Cleanup(func() { _ = f.Close() })
	return func() { must(t, f.Close()) }
}

// TestLockHeld: another program keeps the lock for longer than lockWait. A repair ends in time and names the reason, no chain is half
// written, the rules can be read meanwhile, and afterwards a repair works.
func TestLockHeld(t *testing.T) {
	path := ownLock(t)
	r := newRig(t, iptables.Legacy)
	stats := new(iptables.Stats)
	b, err := iptables.Open(r.Node.Host.FD(), iptables.Legacy, stats)
	must(t, err)
	defer b.Close()
	r.Node.Host.Run("iptables-legacy", "-w", "-t", "raw", "-F", "NEARDNS-UDP")
	before := dump(r.Node.Host)

	release := hold(t, path)
	var drift *steer.DriftError
	if err := b.Verify(r.Host); !errors.As(err, &drift) {
		t.Errorf("what is wrong cannot be seen while the lock is held: %v", err)
	}
	_, err = b.Counters()
	testutil.Check(t, err, "the counters while the lock is held")
	testutil.Equal(t, "reads that waited for the lock", 0, stats.Locked.Load())
	if err = b.Apply(r.Host); !errors.Is(err, iptables.ErrLocked) || !iptables.Busy(err) {
		t.Errorf("while another program has the lock: %v", err)
	}
	testutil.Equal(t, "runs that are counted as locked", 1, stats.Locked.Load())
	if err := b.Supported(); !iptables.Busy(err) || errors.Is(err, steer.ErrNotSupported) {
		t.Errorf("a held lock says nothing of the kernel: %v", err)
	}
	release()

	testutil.Equal(t, "rules while the lock was held", before, dump(r.Node.Host))
	must(t, b.Apply(r.Host))
	must(t, b.Verify(r.Host))
	must(t, b.Supported())
}

// TestLockOfTheOther: iptables-nft has no lock, so it works while the lock is taken.
func TestLockOfTheOther(t *testing.T) {
	hold(t, ownLock(t))
	r := newRig(t, iptables.NFT)
	must(t, r.rules.Verify(r.Host))
}

// TestNoLockFile: the lock file cannot be opened, for which iptables has the same exit code, but waiting does not help.
func TestNoLockFile(t *testing.T) {
	testutil.RequireRoot(t)
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "missing", "xtables.lock"))
	err := open(t, testutil.NewNS(t, "host"), iptables.Legacy).Apply(steer.Host{Redirects: []steer.Redirect{{ClusterDNS: addr("10.96.0.10"), Steering: addr("169.254.20.11")}}})
	if err == nil || iptables.Busy(err) || !strings.Contains(err.Error(), "lock file") {
		t.Errorf("said %v", err)
	}
}

// TestSlowProgram: a program does not end, for example because it waits for another program's transaction.
func TestSlowProgram(t *testing.T) {
	testutil.RequireRoot(t)
	dir := t.TempDir()
	for _, name := range []string{"iptables-nft", "ip6tables-nft"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\nexec sleep 600\n"), 0o755))
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	b := open(t, testutil.NewNS(t, "host"), iptables.NFT)
	b.Within(100 * time.Millisecond)
	err := b.Verify(steer.Host{Redirects: []steer.Redirect{{ClusterDNS: addr("10.96.0.10"), Steering: addr("169.254.20.11")}}})
	if !errors.Is(err, iptables.ErrSlow) || !iptables.Busy(err) {
		t.Errorf("said %v", err)
	}
}

// TestTrialLeft removes the chains of an agent that was killed while it tried whether the kernel accepts the rules.
func TestTrialLeft(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		testutil.RequireRoot(t)
		ns := testutil.NewNS(t, "host")
		program := string(variant)
		ns.RunInput("*nat\n:NODE-LOCAL-DNS-TRY - [0:0]\n:NEARDNS-GIVE-BACK-TRY - [0:0]\n-A NODE-LOCAL-DNS-TRY -j NEARDNS-GIVE-BACK-TRY\nCOMMIT\n", program+"-restore", "--noflush", "-w")
		b := open(t, ns, variant)
		wantPresent(t, b, false, "next to a trial's")
		must(t, b.Remove())
		if left := dump(ns); strings.Contains(left, "-TRY") {
			t.Errorf("left:\n%s", left)
		}
	})
}

// TestChangeDuringCheck: while a check of Repair reads the IPv6 rules, another program deletes the IPv4 rules, which the check has already
// read. A later Repair finds them missing.
func TestChangeDuringCheck(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newRig(t, variant)
		_, err := r.rules.Repair(r.Host)
		must(t, err)
		four, six := "iptables-"+variant.Suffix(), "ip6tables-"+variant.Suffix()
		real, err := exec.LookPath(six)
		must(t, err)
		dir := t.TempDir()
		armed := filepath.Join(dir, "armed")
		must(t, os.WriteFile(armed, nil, 0o644))
		text := "#!/bin/sh\nrm " + armed + " 2>/dev/null && " + four + " -w -t raw -F NEARDNS-UDP\nexec " + real + " \"$@\"\n"
		must(t, os.WriteFile(filepath.Join(dir, six), []byte(text), 0o755))
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		// This starts a check, which finds no difference.
		r.Node.Host.Run(four, "-w", "-t", "raw", "-A", "OUTPUT", "-d", "192.0.2.1", "-j", "ACCEPT")
		var drift []string
		testutil.Eventually(t, func() error {
			more, err := r.rules.Repair(r.Host)
			drift = append(drift, more...) // also of a repair that then had to wait too long for a program
			if _, left := os.Stat(armed); left == nil || len(drift) == 0 {
				return fmt.Errorf("no difference found: %w, armed: %v", err, left == nil)
			}
			return err
		})
		must(t, r.rules.Verify(r.Host))
	})
}
