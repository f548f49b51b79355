package node

import (
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// An opted-out pod's address is exempt while the pod is there. Afterwards the next pod may have it.
func TestExemptionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		first, second := netip.MustParseAddr("10.244.1.7"), netip.MustParseAddr("10.244.1.8")
		w.optedOut = []netip.Addr{first, second}
		begin(t, w, plainPlan())
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
	})
}

func TestEachReasonIsNewsOnce(t *testing.T) {
	l := &targetLease{}
	for i := range 10 {
		reason := strconv.Itoa(i)
		testutil.Equal(t, "reason "+reason, i < 8, l.isNews(reason))
		if l.isNews("0") {
			t.Errorf("after reason %s: the first one is news again", reason)
		}
	}
}
