package backoff

import (
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestFlapping(t *testing.T) {
	now := time.Unix(1000, 0)
	var q Conflict
	for i := range Limit - 1 {
		if q.Repaired(now.Add(time.Duration(i)*time.Second)) || !q.Due(now) || q.Err() != nil {
			t.Fatalf("repair %d is flapping already", i+1)
		}
	}
	// The first ones are out of the window by now: repairs that are far apart never are one.
	if late := now.Add(Window + 3*time.Second); q.Repaired(late) {
		t.Error("repairs of more than a window are summed up")
	}
	q = Conflict{}
	begun := 0
	for i := range Limit + 6 {
		if q.Repaired(now) {
			if begun++; i != Limit-1 {
				t.Errorf("begins with repair %d", i+1)
			}
		}
	}
	if count, lasts := q.Lasts(); begun != 1 || !lasts || count != Limit+6 {
		t.Errorf("begun %d times, %d repairs counted", begun, count)
	}
	testutil.Equal(t, "after many repairs the next one is held back for", Last, q.Until().Sub(now))
	if q.Due(now.Add(Last-1)) || !q.Due(now.Add(Last)) {
		t.Error("due at the wrong time")
	}
	if _, ended := q.Ended(now.Add(Window)); ended {
		t.Error("ended within the window")
	}
	count, ended := q.Ended(now.Add(Window + 1))
	if !ended || count != Limit+6 {
		t.Errorf("ended %t after %d repairs", ended, count)
	}
	if _, again := q.Ended(now.Add(2 * Window)); again || q.Err() != nil {
		t.Error("its end is told twice")
	}
}
