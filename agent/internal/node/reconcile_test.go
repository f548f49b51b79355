package node

import (
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// An opted-out pod's address is exempt while the pod is there. Afterwards the next pod may have it.
func TestExemptionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		first, second := netip.MustParseAddr("10.244.1.7"), netip.MustParseAddr("10.244.1.8")
		w.optedOut = []netip.Addr{first, second}
		_, end := begin(t, w, plainPlan())
		round := func() { w.ticks <- struct{}{}; pass(time.Second) }
		pass(time.Second)
		round()
		if n := w.count("unexempt"); n > 0 {
			t.Errorf("%d exemptions of pods that are there have ended", n)
		}
		w.set(func() { w.optedOut = []netip.Addr{second} })
		round()
		round()
		if w.count("unexempt") != 1 || !slices.Contains(w.calls(), "unexempt [10.244.1.7]") {
			t.Errorf("ended exemptions: %v", w.calls())
		}
		end()
	})
}

func TestEachReasonIsNewsOnce(t *testing.T) {
	l := &targetLease{}
	for i := range 10 {
		reason := strconv.Itoa(i)
		if got, want := l.isNews(reason), i < 8; got != want {
			t.Errorf("reason %s: %t, want %t", reason, got, want)
		}
		if l.isNews("0") {
			t.Errorf("after reason %s: the first one is news again", reason)
		}
	}
}
