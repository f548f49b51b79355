package iptables

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestFresh holds how soon the rules are looked at again: a second after a quick look, and later after one that took long, but
// no later than Watch asks for it.
func TestFresh(t *testing.T) {
	for _, c := range []struct{ took, again time.Duration }{
		{0, lookAgain}, {50 * time.Millisecond, lookAgain}, {400 * time.Millisecond, 4 * time.Second}, {time.Minute, lookEvery},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := &Iptables{last: "rules", looked: time.Now(), took: c.took}
			<-time.After(c.again - time.Millisecond)
			if !b.isFresh("rules") || b.isFresh("other rules") {
				t.Errorf("a look that took %v is worth nothing after %v, or something for other rules", c.took, c.again-time.Millisecond)
			}
			<-time.After(time.Millisecond)
			if b.isFresh("rules") {
				t.Errorf("a look that took %v is still fresh after %v", c.took, c.again)
			}
		})
	}
}
