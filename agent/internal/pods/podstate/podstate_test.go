package podstate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

var (
	stateNames = []string{"", "untried", "waiting", "steered", "bypassed", "unselected"}
	eventNames = []string{"trial answered", "trial unanswered", "trial void", "trial failed", "table bypasses", "table knows nothing",
		"host drops",
		"host delivers", "fallback verified", "fallback lost", "lease granted", "lease withdrawn", "selected",
		"deselected", "heartbeat"}
	effectNames = []string{"steer", "bypass", "trial"}
)

// describe is a status and effects in words, with times from the test's beginning.
func describe(s Status, do Effect, from time.Time) string {
	words := []string{stateNames[s.State]}
	for i, name := range effectNames {
		if do&(1<<i) != 0 {
			words = append(words, name)
		}
	}
	if !s.Next.IsZero() {
		words = append(words, fmt.Sprint("next ", s.Next.Sub(from)))
	}
	for name, on := range map[string]bool{"no lease": s.NoLease, "hidden": s.Hidden} {
		if on {
			words = append(words, name)
		}
	}
	return strings.Join(words, ", ")
}

// TestTable is every state with every event, 5 s after the state began, with a trial scheduled for the 10th second.
func TestTable(t *testing.T) {
	const same = ", next 10s"
	want := map[State]map[Event]string{
		Untried: {
			TrialAnswered: "waiting", TrialUnanswered: "bypassed, next 15s", TrialVoid: "untried, next 5.3s",
			LeaseWithdrawn: "untried, next 10s, no lease", Deselected: "unselected",
		},
		Waiting: {FallbackVerified: "steered, steer", LeaseWithdrawn: "waiting, next 10s, no lease",
			Deselected: "unselected, bypass"},
		Steered: {
			TrialAnswered: "steered", TrialVoid: "steered", TrialFailed: "steered, next 15s",
			TrialUnanswered: "bypassed, bypass, next 15s",
			TableBypasses:   "steered, next 5s", TableKnowsNothing: "steered, next 5s",
			HostDrops: "bypassed, bypass, next 15s", FallbackLost: "waiting, bypass",
			LeaseWithdrawn: "steered, next 10s, no lease", Deselected: "unselected, bypass",
		},
		Bypassed: {
			TrialAnswered: "waiting", TrialUnanswered: "bypassed, next 15s", TrialVoid: "bypassed, next 15s",
			HostDrops: "bypassed, bypass" + same, HostDelivers: "steered, steer",
			LeaseWithdrawn: "bypassed, next 10s, no lease", Deselected: "unselected",
		},
		Unselected: {Selected: "untried, next 5s", LeaseWithdrawn: "unselected, next 10s, no lease"},
	}
	// While the path is young, these differ: it is tried again soon, and a steered one is watched.
	young := map[State]map[Event]string{
		Untried: {TrialUnanswered: "bypassed, next 5.3s"},
		Waiting: {FallbackVerified: "steered, steer, next 5.3s, hidden"},
		Steered: {
			TrialAnswered: "steered, next 5.3s, hidden", TrialVoid: "steered, next 5.3s, hidden", TrialFailed: "steered, next 5.3s",
			TrialUnanswered: "bypassed, bypass, next 5.3s", HostDrops: "bypassed, bypass, next 5.3s",
		},
		Bypassed: {TrialUnanswered: "bypassed, next 5.3s", TrialVoid: "bypassed, next 5.3s", HostDrops: "bypassed, bypass" + same},
	}
	from := time.Unix(0, 0)
	for state := Untried; state < states; state++ {
		for e := range events {
			before := Status{State: state, Since: from, Next: from.Add(10 * time.Second)}
			expected, changes := want[state][e]
			if !changes {
				expected = stateNames[state] + same
			}
			before.Untried = from
			inYouth, differs := young[state][e]
			if !differs {
				inYouth = expected
			}
			s, do := before.On(e, from.Add(5*time.Second))
			testutil.Equal(t, fmt.Sprintf("a young path, %s, %s", stateNames[state], eventNames[e]), inYouth, describe(s, do, from))
			before.Untried = from.Add(5*time.Second - Youth)
			s, do = before.On(e, from.Add(5*time.Second))
			testutil.Equal(t, fmt.Sprintf("%s, %s", stateNames[state], eventNames[e]), expected, describe(s, do, from))
			if s.State != state && !s.Since.Equal(from.Add(5*time.Second)) {
				t.Errorf("%s, %s: changed at %s", stateNames[state], eventNames[e], s.Since)
			}
		}
	}
}

// TestTrials: when a trial is started, from each schedule.
func TestTrials(t *testing.T) {
	from := time.Unix(0, 0)
	for _, c := range []struct {
		name   string
		status Status
		events []Event // a second apart, from the first second on
		want   string
	}{
		{"of a pod that ran before", Status{State: Untried}, []Event{Heartbeat}, "untried, trial, next 11s"},
		{"of a young pod that was bypassed", Status{State: Bypassed, Untried: from}, []Event{Heartbeat}, "bypassed, next 1.3s"},
		{"of a young pod, without a result", Status{State: Untried, Untried: from}, []Event{Heartbeat, Heartbeat}, "untried, next 11s"},
		{"of a bypassed pod, after an agent's start", Status{State: Bypassed}, []Event{Heartbeat}, "bypassed, next 11s"},
		{"of a steered pod", Status{State: Steered}, []Event{Heartbeat}, "steered"},
		{"of a suspect", Status{State: Steered}, []Event{TableBypasses, Heartbeat}, "steered, trial"},
		{"its time has not come", Status{State: Bypassed, Next: from.Add(3 * time.Second)}, []Event{Heartbeat}, "bypassed, next 3s"},
		{"its time has come", Status{State: Bypassed, Next: from.Add(3 * time.Second)}, []Event{Heartbeat, Heartbeat, Heartbeat}, "bypassed, trial, next 13s"},
		{"without a lease", Status{State: Bypassed, Next: from}, []Event{LeaseWithdrawn, Heartbeat}, "bypassed, next 0s, no lease"},
		{"the lease is back", Status{State: Bypassed, Next: from.Add(time.Hour)}, []Event{LeaseWithdrawn, LeaseGranted, Heartbeat}, "bypassed, trial, next 13s"},
		{"the lease is back, of an undisturbed pod", Status{State: Steered}, []Event{LeaseWithdrawn, LeaseGranted, Heartbeat}, "steered"},
		{"bypassed for 10 minutes", Status{State: Bypassed, Since: from.Add(-599 * time.Second), Next: from},
			[]Event{Heartbeat}, "bypassed, trial, next 1m1s"},
		{"for a second less", Status{State: Bypassed, Since: from.Add(-598 * time.Second), Next: from},
			[]Event{Heartbeat}, "bypassed, trial, next 11s"},
	} {
		if c.status.Since.IsZero() {
			c.status.Since = from
		}
		var do Effect
		for i, e := range c.events {
			c.status, do = c.status.On(e, from.Add(time.Duration(i+1)*time.Second))
		}
		testutil.Equal(t, c.name, c.want, describe(c.status, do, from))
	}
}

// TestIn: what the pod's file has in force holds, whatever was remembered, and a remembered schedule goes on only in the same state.
func TestIn(t *testing.T) {
	from := time.Unix(0, 0)
	s := Status{State: Bypassed, Since: from, Next: from.Add(time.Second), NoLease: true}
	testutil.Equal(t, "the same state", s, s.In(Bypassed, from.Add(time.Minute)))
	if got, want := s.In(Steered, from.Add(time.Minute)), (Status{State: Steered, Since: from.Add(time.Minute), NoLease: true}); got != want {
		t.Errorf("another state: %+v, want %+v", got, want)
	}
	later := from.Add(time.Second)
	testutil.Equal(t, "a new pod", (Status{State: Untried, Since: later, NoLease: true, Untried: later}), s.In(Untried, later))
	s = Status{State: Waiting, Untried: from}
	want := Status{State: Steered, Since: later, Untried: from, Next: later.Add(Retry), Hidden: true}
	testutil.Equal(t, "a young path is steered", want, s.In(Steered, later))
}

// TestNames keeps the names of this test's messages complete.
func TestNames(t *testing.T) {
	if len(eventNames) != int(events) || len(stateNames) != int(states) || slices.Contains(eventNames, "") {
		t.Error("an event or state has no name")
	}
}
