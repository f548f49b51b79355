//go:build timing

package iptables_test

import (
	"errors"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// A repair waits for the lock of another program for as long as one program may, and for twice as long at most.
//
// State: TestLockHeld. Bound: none, iptables itself waits for the lock.
func TestTimingLockHeld(t *testing.T) {
	path := ownLock(t)
	r := newRig(t, iptables.Legacy)
	b := open(t, r.Node.Host, iptables.Legacy)
	r.Node.Host.Run("iptables-legacy", "-w", "-t", "raw", "-F", "NEARDNS-UDP")
	defer hold(t, path)()
	begun := time.Now()
	err := b.Apply(r.Host)
	if took := time.Since(begun); !errors.Is(err, iptables.ErrLocked) || took < iptables.LockWait || took > 2*iptables.LockWait {
		t.Errorf("after %v: %v", took, err)
	}
}

// A change is reported long before the regular tick of ten seconds.
//
// State: TestWatch. Bound: none, netlink reports the change.
func TestTimingWatch(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newRig(t, variant)
		ticks, err := r.rules.Watch(t.Context())
		must(t, err)
		begun := time.Now()
		r.Node.Host.Run(string(variant), "-w", "-t", "mangle", "-F")
		testutil.Receive(t, ticks)
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("reported after %v", took)
		}
	})
}
