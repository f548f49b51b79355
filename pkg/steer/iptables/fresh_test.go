package iptables

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestRests: programs are started again soon after a quick check, and later after one that took long, but after checkEvery at most.
func TestRests(t *testing.T) {
	for _, c := range []struct{ took, again time.Duration }{
		{0, recheckAfter}, {20 * time.Millisecond, recheckAfter}, {2 * time.Second, 4 * time.Second}, {time.Minute, checkEvery},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := &Iptables{checked: time.Now(), checkTook: c.took}
			<-time.After(c.again - time.Millisecond)
			if !b.checkedRecently() {
				t.Errorf("after a look that took %v another is made after %v", c.took, c.again-time.Millisecond)
			}
			<-time.After(time.Millisecond)
			if b.checkedRecently() {
				t.Errorf("after a look that took %v none is made after %v", c.took, c.again)
			}
		})
	}
}

// TestWatchRepeatsTicks: Repair may postpone its check after any tick, also after a regular one.
func TestWatchRepeatsTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &Iptables{} // no variant, so the only events are the regular ticks
		ticks, err := b.Watch(t.Context())
		testutil.Must(t, err)
		<-ticks
		b.postponed.Store(true)
		begun := time.Now()
		for range 2 {
			<-ticks
		}
		testutil.Equal(t, "time of two more ticks", 2*recheckAfter, time.Since(begun))
		b.postponed.Store(false)
	})
}
