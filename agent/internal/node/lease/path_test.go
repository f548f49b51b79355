package lease

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestTransitions walks every state with every event, before and after what the state waits for is due.
func TestTransitions(t *testing.T) {
	now := time.Unix(10000, 0)
	rounds := map[string]Round{"answered": {Answered: true}, "served": {Fallback: Yes}, "down": {Fallback: No}, "unclear": {},
		"pod served": {Fallback: No, Pod: Yes}, "pod failed": {Fallback: No, Pod: No}, "pod failed, unclear": {Pod: No}}
	for _, tc := range []struct {
		from State
		due  bool // until has passed, kube-dns was silent for unservedLimit, and two answers came before this round
		want map[string]State
	}{
		{Starting, false, map[string]State{"answered": Serving, "served": Fallback, "down": Trial, "unclear": Starting,
			"pod served": Fallback, "pod failed": Trial, "pod failed, unclear": Starting}},
		{Starting, true, map[string]State{"answered": Serving, "served": Fallback, "down": Trial, "unclear": Starting,
			"pod served": Fallback, "pod failed": Trial, "pod failed, unclear": Starting}},
		{Serving, false, map[string]State{"answered": Serving, "served": Fallback, "down": BothDown, "unclear": Serving,
			"pod served": Fallback, "pod failed": BothDown, "pod failed, unclear": Serving}},
		{Serving, true, map[string]State{"answered": Serving, "served": Fallback, "down": BothDown, "unclear": Serving,
			"pod served": Fallback, "pod failed": BothDown, "pod failed, unclear": Serving}},
		{Fallback, false, map[string]State{"answered": Fallback, "served": Fallback, "down": Fallback, "unclear": Fallback,
			"pod served": Fallback, "pod failed": Fallback, "pod failed, unclear": Fallback}},
		{Fallback, true, map[string]State{"answered": Serving, "served": Fallback, "down": BothDown, "unclear": BothDown,
			"pod served": Fallback, "pod failed": BothDown, "pod failed, unclear": BothDown}},
		{BothDown, false, map[string]State{"answered": Serving, "served": Fallback, "down": BothDown, "unclear": BothDown,
			"pod served": Fallback, "pod failed": BothDown, "pod failed, unclear": BothDown}},
		{BothDown, true, map[string]State{"answered": Serving, "served": Fallback, "down": Trial, "unclear": Trial,
			"pod served": Fallback, "pod failed": Trial, "pod failed, unclear": Trial}},
		{Trial, false, map[string]State{"answered": Serving, "served": Fallback, "down": Trial, "unclear": Trial,
			"pod served": Fallback, "pod failed": BothDown, "pod failed, unclear": BothDown}},
		{Trial, true, map[string]State{"answered": Serving, "served": Fallback, "down": BothDown, "unclear": BothDown,
			"pod served": Fallback, "pod failed": BothDown, "pod failed, unclear": BothDown}},
	} {
		if len(tc.want) != len(rounds) {
			t.Fatalf("state %d: %d rounds, want %d", tc.from, len(tc.want), len(rounds))
		}
		for name, want := range tc.want {
			w := Path{State: tc.from, until: now.Add(time.Second), since: now.Add(-time.Second)}
			if tc.due {
				w.until, w.since, w.inARow = now, now.Add(-unservedLimit), answersInARow-1
			}
			testutil.Equal(t, fmt.Sprintf("state %d, due %t, %s", tc.from, tc.due, name), want, w.Next(rounds[name], now).State)
		}
	}
}

// TestPathWalk takes random rounds in and checks what must hold for the leases behind an address.
func TestPathWalk(t *testing.T) {
	seen := map[State]bool{}
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // a repeatable walk
		var w Path
		now := time.Unix(1000, 0)
		last := Round{}
		answers, lost, trial := 0, time.Time{}, time.Time{} // answered rounds in a row; the last loss; the begin of a trial
		for range 4000 {
			step := time.Duration(500+r.IntN(2000)) * time.Millisecond
			now = now.Add(step)
			if r.IntN(4) == 0 { // else as before: outages last
				last = Round{Answered: r.IntN(2) == 0, Fallback: Answer(r.IntN(3)), Pod: Answer(r.IntN(3))}
			}
			before := w
			w = w.Next(last, now)
			seen[w.State] = true
			answers++
			if !last.Answered {
				answers = 0
			}
			podsServed := !last.Answered && (last.Fallback == Yes || last.Pod == Yes)
			switch {
			case podsServed && w.Allows():
				t.Fatalf("seed %d: leases, although the agent cannot query and kube-dns answers pods: %+v", seed, w)
			case w.State == Serving && before.State != Serving && !last.Answered:
				t.Fatalf("seed %d: serving without an answer: %+v", seed, w)
			case w.State == Starting && before.State != Starting:
				t.Fatalf("seed %d: starting twice: %+v", seed, w)
			case before.State == Fallback && w.State == Serving && (answers < answersInARow || now.Before(lost.Add(max(restSilent, restAfter(before.losses))))):
				t.Fatalf("seed %d: served again after %d answers and %s: %+v", seed, answers, now.Sub(lost), w)
			case before.State == Serving && w.State == Fallback && w.losses != before.losses+1: // the more losses, the longer the rest: no flapping
				t.Fatalf("seed %d: a loss that does not count: %+v", seed, w)
			case last.Answered && w.State != Serving && w.State != Fallback:
				t.Fatalf("seed %d: answered, and no leases: %+v", seed, w)
			case before.State == Trial && w.State == Trial && now.Sub(trial) >= trialLength:
				t.Fatalf("seed %d: a trial of %s: %+v", seed, now.Sub(trial), w)
			case before.State == Serving && w.State == Trial:
				t.Fatalf("seed %d: a trial before any outage lasted: %+v", seed, w)
			}
			if w.State == Fallback && before.State != Fallback {
				lost = now
			}
			if w.State == Trial && before.State != Trial {
				trial = now
			}
		}
	}
	testutil.Equal(t, "states that the walk came to", int(Trial)+1, len(seen))
}

// TestRounds gives sequences of rounds, two seconds apart, to a node that starts.
func TestRounds(t *testing.T) {
	ok := Round{Answered: true}
	podsServed, neither, unclear := Round{Fallback: Yes}, Round{Fallback: No}, Round{}
	podToo := Round{Fallback: No, Pod: Yes}
	times := func(n int, f Round) []Round {
		var out []Round
		for range n {
			out = append(out, f)
		}
		return out
	}
	join := func(parts ...[]Round) (out []Round) {
		for _, p := range parts {
			out = append(out, p...)
		}
		return out
	}
	one := func(f ...Round) []Round { return f }
	for _, tc := range []struct {
		name   string
		rounds []Round
		allows bool
	}{
		{"no answer and nothing is known of kube-dns", one(unclear, unclear), false},
		{"neither answers at the start: after a trial, the cache may answer", join(times(6, neither)), true},
		{"queries fail, nothing known of kube-dns", one(ok, unclear, unclear, unclear), true},
		{"an outage of kube-dns", join(one(ok), times(4, neither)), true},
		{"a longer one, in its trial", join(one(ok), times(9, neither)), false},
		{"a pod is answered, and stays with kube-dns", join(one(ok), times(9, neither), times(60, podToo)), false},
		{"no pod to query from: the trial ends by itself", join(one(ok), times(14, neither)), true},
		{"one answer is not enough after a loss", one(ok, podsServed, ok, ok), false},
		{"three in a row are", one(ok, podsServed, ok, ok, ok), true},
		{"in a row only", one(ok, podsServed, ok, ok, podsServed, ok, ok), false},
		{"a second loss rests for longer", one(ok, podsServed, ok, ok, ok, podsServed, ok, ok, ok), false},
		{"for eight seconds", one(ok, podsServed, ok, ok, ok, podsServed, ok, ok, ok, ok), true},
		{"losses are forgiven after a minute", join(one(ok, podsServed), times(40, ok), one(podsServed, ok, ok, ok)), true},
		{"kube-dns dies behind bypassed pods", join(one(ok, podsServed), times(7, neither)), true},
		{"for a moment only", join(one(ok, podsServed), times(4, neither), one(podsServed), times(4, neither)), false},
		{"answers during a rest: one lost round does not end it", join(one(ok, podsServed), times(4, ok), one(podsServed),
			times(4, ok), one(podsServed, neither), times(6, ok), one(neither)), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var w Path
			now := time.Unix(1000, 0)
			for _, f := range tc.rounds {
				now = now.Add(2 * time.Second)
				w = w.Next(f, now)
			}
			if w.Allows() != tc.allows {
				t.Errorf("leases allowed: %t, want %t: %+v", w.Allows(), tc.allows, w)
			}
		})
	}
}
