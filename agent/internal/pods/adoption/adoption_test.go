package adoption

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestStopped is every census of up to 200 tried pods.
func TestStopped(t *testing.T) {
	for tried := range 201 {
		for unanswered := range tried + 1 {
			for _, waiting := range []int{0, 1, 90} {
				c := Census{Other: 7, Waiting: waiting, Started: 3, Answered: tried - unanswered, Unanswered: unanswered}
				want := waiting > 0 && tried >= 20 && float64(unanswered)/float64(max(tried, 1)) > 0.05
				if c.Stopped() != want {
					t.Errorf("%d of %d unanswered, %d wait: stopped %v", unanswered, tried, waiting, !want)
				}
				var a Adoption
				start, _ := a.Next(c, waiting > 0, time.Unix(0, 0))
				if start != (waiting > 0 && !want) || (a.Stopped() != nil) != want {
					t.Errorf("%d of %d unanswered, %d wait: start %v, %v", unanswered, tried, waiting, start, a.Stopped())
				}
			}
		}
	}
	for _, c := range []struct {
		unanswered, tried int
		stopped           bool
	}{{1, 3, false}, {19, 19, false}, {1, 20, false}, {2, 20, true}, {2, 39, true}, {2, 40, false}, {3, 40, true}, {20, 20, true}} {
		if got := (Census{Waiting: 1, Answered: c.tried - c.unanswered, Unanswered: c.unanswered}).Stopped(); got != c.stopped {
			t.Errorf("%d of %d: stopped %v", c.unanswered, c.tried, got)
		}
	}
}

// TestPace: five pods a second, however often and however late the caller comes, and none in a burst afterwards.
func TestPace(t *testing.T) {
	for _, every := range []time.Duration{0, 10 * time.Millisecond, 250 * time.Millisecond, 3 * time.Second} { // 0: when Next returns
		synctest.Test(t, func(t *testing.T) {
			a, c := Adoption{}, Census{Waiting: 110}
			begin := time.Now()
			var started []time.Time
			for c[Waiting] > 0 {
				start, again := a.Next(c, true, time.Now())
				if start {
					started = append(started, time.Now())
					c[Waiting]--
					c[Answered]++
				}
				if time.Until(again) > Pause || !start && !again.After(time.Now()) {
					t.Fatalf("called again after %s", time.Until(again))
				}
				if every > 0 {
					time.Sleep(every)
				} else {
					time.Sleep(time.Until(again))
				}
			}
			for i := range started {
				if i >= 5 && started[i].Sub(started[i-5]) < time.Second {
					t.Errorf("every %s: six pods within a second, from %s on", every, started[i-5].Sub(begin))
				}
			}
			if took := started[len(started)-1].Sub(begin); every == 0 && took != 109*Pause {
				t.Errorf("110 pods took %s", took)
			}
		})
	}
}

// TestStopAndGoOn: a stop has one text until it ends, and pods are started again once the trials are answered or the pods are gone.
func TestStopAndGoOn(t *testing.T) {
	now := time.Unix(0, 0)
	var a Adoption
	step := func(c Census, start bool) string {
		t.Helper()
		now = now.Add(time.Minute)
		if got, again := a.Next(c, c[Waiting] > 0, now); got != start || start == again.IsZero() {
			t.Errorf("%v: start %v, again %s", c, got, again)
		}
		if a.Stopped() == nil {
			return ""
		}
		return a.Stopped().Error()
	}
	step(Census{Waiting: 80, Answered: 18, Unanswered: 1}, true)
	first := step(Census{Waiting: 79, Started: 4, Answered: 18, Unanswered: 2}, false)
	if !strings.Contains(first, "2 of the 20 pods") {
		t.Errorf("text: %s", first)
	}
	testutil.Equal(t, "text of the stop", first, step(Census{Waiting: 79, Answered: 20, Unanswered: 4}, false))
	testutil.Equal(t, "fault when it goes on", "", step(Census{Waiting: 79, Answered: 23, Unanswered: 1}, true))
	step(Census{Waiting: 78, Answered: 18, Unanswered: 5}, false)
	if start, again := a.Next(Census{Waiting: 78, Answered: 18}, false, now); start || !again.IsZero() || a.Stopped() != nil {
		t.Errorf("no lease: start %v, again %s, %v", start, again, a.Stopped())
	}
	step(Census{Waiting: 78, Answered: 18, Unanswered: 5}, false)
	testutil.Equal(t, "fault while no pod waits", "", step(Census{Other: 78, Answered: 18, Unanswered: 5}, false))
}
