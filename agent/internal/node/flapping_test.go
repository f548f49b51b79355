package node

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestFlapping(t *testing.T) {
	now := time.Unix(1000, 0)
	var q flapping
	for i := range flappingLimit - 1 {
		if q.repaired(now.Add(time.Duration(i)*time.Second)) || !q.due(now) || q.err() != nil {
			t.Fatalf("repair %d is flapping already", i+1)
		}
	}
	// The first ones are out of the window by now: repairs that are far apart never are one.
	if late := now.Add(flappingWindow + 3*time.Second); q.repaired(late) {
		t.Error("repairs of more than a window are summed up")
	}
	q = flapping{}
	begun := 0
	for i := range flappingLimit + 6 {
		if q.repaired(now) {
			if begun++; i != flappingLimit-1 {
				t.Errorf("begins with repair %d", i+1)
			}
		}
	}
	if begun != 1 || q.count != flappingLimit+6 {
		t.Errorf("begun %d times, %d repairs counted", begun, q.count)
	}
	if got := q.until.Sub(now); got != flappingLast {
		t.Errorf("after many repairs the next one is held back for %v, want %v", got, flappingLast)
	}
	if q.due(now.Add(flappingLast-1)) || !q.due(now.Add(flappingLast)) {
		t.Error("due at the wrong time")
	}
	if _, ended := q.ended(now.Add(flappingWindow)); ended {
		t.Error("ended within the window")
	}
	count, ended := q.ended(now.Add(flappingWindow + 1))
	if !ended || count != flappingLimit+6 {
		t.Errorf("ended %t after %d repairs", ended, count)
	}
	if _, again := q.ended(now.Add(2 * flappingWindow)); again || q.err() != nil {
		t.Error("its end is told twice")
	}
}

// TestRepairsAreBounded has another program undo every repair at once, for a minute.
func TestRepairsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n, end := begin(t, w, plainPlan())
		pass(time.Second)
		w.forget()
		undo := func() {
			w.set(func() { w.drift = []string{"table inet neardns is missing or empty"} })
			select {
			case w.ticks <- struct{}{}:
			default:
			}
		}
		stop := time.After(time.Minute)
		for undoing := true; undoing; {
			select {
			case <-stop:
				undoing = false
			case <-time.After(10 * time.Millisecond):
				undo()
			}
		}
		if repairs := w.count("count-repair rules"); repairs < flappingLimit+8 || repairs > flappingLimit+20 {
			t.Errorf("%d repairs in a minute", repairs)
		}
		s := n.Status()
		if !strings.Contains(s.Faults["rules"], "undid it 10 times") || s.LastFault == nil || s.LastFault.Part != "rules" {
			t.Errorf("the flapping is no fault: %v, last %v", s.Faults, s.LastFault)
		}
		if s.Repairs["rules"] != w.count("count-repair rules") {
			t.Errorf("status counts %d repairs, %d were made", s.Repairs["rules"], w.count("count-repair rules"))
		}
		pass(flappingWindow + slowCheck + flappingLast)
		if fault := n.Status().Faults["rules"]; fault != "" {
			t.Errorf("the fault outlives the flapping: %s", fault)
		}
		end()
	})
}

func TestReloadIsNoFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n, end := begin(t, w, plainPlan())
		pass(time.Second)
		w.forget()
		for i := range 3 * flappingLimit {
			next := plainPlan()
			next.Terms.Lifetime += time.Duration(i+1) * time.Millisecond
			w.set(func() { w.drift = []string{"chain control4 differs"} })
			n.Set(next)
			pass(100 * time.Millisecond)
		}
		if s := n.Status(); len(s.Faults) > 0 || len(s.Repairs) > 0 {
			t.Errorf("reloads are taken for repairs: faults %v, repairs %v", s.Faults, s.Repairs)
		}
		end()
	})
}
