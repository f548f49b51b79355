package node

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/agent/internal/node/backoff"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestRepairsAreBounded has another program undo every repair at once, for a minute.
func TestRepairsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		var logs testutil.Output
		n := begin(t, w, plainPlan(), func(n *Node) { n.Log = slog.New(slog.NewTextHandler(&logs, nil)) })
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
		if repairs := w.count("count-repair rules"); repairs < backoff.Limit+8 || repairs > backoff.Limit+20 {
			t.Errorf("%d repairs in a minute", repairs)
		}
		for text, want := range map[string]int{"repaired a part of the node": backoff.Limit, "another program undid the repair": 1} {
			testutil.Equal(t, "times logged: "+text, want, strings.Count(logs.String(), text))
		}
		s := n.Status()
		if !strings.Contains(s.Faults["rules"], "undid the repair 10 times") || s.LastFault == nil || s.LastFault.Part != "rules" {
			t.Errorf("the flapping is no fault: %v, last %v", s.Faults, s.LastFault)
		}
		if s.Repairs["rules"] != w.count("count-repair rules") {
			t.Errorf("status counts %d repairs, %d were made", s.Repairs["rules"], w.count("count-repair rules"))
		}
		pass(backoff.Window + slowCheck + backoff.Last)
		testutil.Equal(t, "the fault outlives the flapping", "", n.Status().Faults["rules"])
	})
}

func TestReloadIsNoFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n := begin(t, w, plainPlan())
		pass(time.Second)
		w.forget()
		for i := range 3 * backoff.Limit {
			next := plainPlan()
			next.Terms.Lifetime += time.Duration(i+1) * time.Millisecond
			w.set(func() { w.drift = []string{"chain control4 differs"} })
			n.Set(next, taken(false))
			pass(100 * time.Millisecond)
		}
		if s := n.Status(); len(s.Faults) > 0 || len(s.Repairs) > 0 {
			t.Errorf("reloads are taken for repairs: faults %v, repairs %v", s.Faults, s.Repairs)
		}
	})
}
