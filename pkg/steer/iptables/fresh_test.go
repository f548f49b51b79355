package iptables

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestRests holds how soon programs are started again to look: soon after a quick look, and later after one that took long, but
// no later than Watch wants it.
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
