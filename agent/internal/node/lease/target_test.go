package lease

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// targetCase is a target's state before a probe, and the probe.
type targetCase struct {
	probe         Probe
	held, expired bool
	resting       bool // its rest is not over
	rested        bool // its last loss had a rest
	long          bool // it was granted as long ago as losses are remembered
	inARow        int
	losses        int
	history       string // explicit results, oldest first: '.' is an answer, 'x' a failure
}

// histories lists all sequences of up to five explicit results.
func histories() []string {
	out := []string{""}
	for i := 0; len(out[i]) < 5; i++ {
		out = append(out, out[i]+".", out[i]+"x")
	}
	return out
}

// targetCases calls visit for each state of a target with each probe, and with that target.
func targetCases(now time.Time, visit func(targetCase, Target)) {
	for _, history := range histories() {
		for n := range 5 * 4 * 4 {
			for bits := range 1 << 5 {
				bit := func(i int) bool { return bits>>i&1 == 1 }
				c := targetCase{Probe(n % 5), bit(0), bit(1), bit(2), bit(3), bit(4), n / 5 % 4, n / 20, history}
				t := Target{inARow: c.inARow, losses: c.losses, rested: c.rested, restUntil: now, heldSince: now.Add(1 - time.Minute)}
				if c.resting {
					t.restUntil = now.Add(1)
				}
				if c.long {
					t.heldSince = now.Add(-time.Minute)
				}
				for _, r := range history {
					t.failed = append(t.failed, r == 'x')
				}
				visit(c, t)
			}
		}
	}
}

// rule is what must hold after a probe, whatever came before it.
type rule struct {
	name string
	kept bool
}

// TestTargetSteps checks the rules of a lease in each state of its target, with each probe.
func TestTargetSteps(t *testing.T) {
	now, cases := time.Unix(1000, 0), 0
	targetCases(now, func(c targetCase, before Target) {
		cases++
		after := before
		got := after.Next(c.probe, c.held, c.expired, now)
		answered, results, inARow := c.probe == Answered, c.history, 0
		switch c.probe {
		case Answered:
			results, inARow = results+".", c.inARow+1
		case Slow, Failed:
			results += "x"
		}
		results = results[max(0, len(results)-5):]
		failing := strings.Count(results, "x") >= 3
		granted := !c.held && got == Renew
		for _, r := range []rule{
			{"only an answer renews or grants", got != Renew || answered},
			{"an answer renews a lease that is held", !c.held || !answered || got == Renew},
			{"three failures of five results withdraw", !c.held || answered || !failing || got == Withdraw},
			{"fewer do not", got != Withdraw || c.held && failing},
			{"a lease that is not renewed in its lifetime has lapsed", !c.held || answered || failing || !c.expired || got == Lapse},
			{"no other has", got != Lapse || c.held && c.expired},
			{"no lease is granted during a rest", !granted || !c.resting},
			{"three answers in a row end a rest", !granted || !c.rested || inARow >= 3},
			{"nothing else delays a lease", c.held || !answered || c.resting || c.rested && inARow < 3 || granted},
			{"the last five results are kept", marks(after.failed) == results},
			{"a probe without an answer ends the answers in a row", after.inARow == inARow},
			{"losses are forgotten after a minute with the lease, and only then", after.losses == c.losses && !(c.held && c.long) ||
				after.losses == 0 && c.held && c.long},
			{"that minute begins with the grant", granted && after.heldSince.Equal(now) ||
				!granted && after.heldSince.Equal(before.heldSince)},
			{"a probe changes no rest", after.restUntil.Equal(before.restUntil) && after.rested == before.rested},
		} {
			if !r.kept {
				t.Errorf("%+v: verdict %d breaks %q: %+v", c, got, r.name, after)
			}
		}
	})
	testutil.Equal(t, "cases", 161280, cases)
}

// marks writes results as targetCase.history does.
func marks(failed []bool) (out string) {
	for _, f := range failed {
		out += map[bool]string{false: ".", true: "x"}[f]
	}
	return out
}

// TestTargetLoses checks what a loss costs in each state of its target, by each probe.
func TestTargetLoses(t *testing.T) {
	now := time.Unix(1000, 0)
	rests := map[bool][]time.Duration{ // by losses before this one
		false: {0, 8 * time.Second, 16 * time.Second, 32 * time.Second},
		true:  {8 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second}, // to a late answer
	}
	targetCases(now, func(c targetCase, before Target) {
		slow := c.probe == Slow
		rest, losses := rests[slow][c.losses], c.losses+1
		if slow && c.losses == 0 {
			losses = 2 // a first loss to late answers counts as a second one
		}
		if c.probe == Silent && c.losses == 0 {
			rest = 2 * time.Second
		}
		after := before
		got := after.Lose(c.probe, now)
		for _, r := range []rule{
			{"the rest grows with the losses", got == rest && after.losses == losses},
			{"the target waits for its rest", after.restUntil.Equal(now.Add(rest)) && after.rested == (rest > 0)},
			{"answers are counted from the loss on", after.inARow == 0},
			{"a loss changes nothing else", slices.Equal(after.failed, before.failed) && after.heldSince.Equal(before.heldSince)},
		} {
			if !r.kept {
				t.Errorf("%+v: a rest of %s breaks %q: %+v", c, got, r.name, after)
			}
		}
	})
}

func TestRest(t *testing.T) {
	for losses, want := range []time.Duration{0, 0, 8 * time.Second, 16 * time.Second, 32 * time.Second, time.Minute, time.Minute} {
		testutil.Equal(t, fmt.Sprintf("rest after %d losses", losses), want, restAfter(losses))
	}
	testutil.Equal(t, "rest after many losses", restMax, restAfter(1000))
}

// TestTargetWalk takes random probes in and checks what must hold for each lease.
func TestTargetWalk(t *testing.T) {
	const lifetime = 800 * time.Millisecond
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a repeatable walk
		var c Target
		now := time.Unix(1000, 0)
		held, renewed := false, time.Time{}
		var restUntil time.Time
		proofs, rested := 0, false // in a row; the last loss had a rest
		explicit := []bool{}       // since ever: whether each counted result was a failure
		for range 4000 {
			now = now.Add(time.Duration(1+r.IntN(300)) * time.Millisecond)
			// Runs of one result are more telling than noise.
			p := Probe(r.IntN(5))
			if r.IntN(3) > 0 {
				p = Answered
			}
			if p != Silent && p != Canceled {
				explicit = append(explicit, p != Answered)
			}
			if proofs++; p != Answered {
				proofs = 0
			}
			v := c.Next(p, held, now.Sub(renewed) > lifetime, now)
			switch {
			case v == Renew && p != Answered:
				t.Fatalf("seed %d: renewed after probe %d", seed, p)
			case v == Renew && !held && now.Before(restUntil):
				t.Fatalf("seed %d: granted %s before its rest ended", seed, restUntil.Sub(now))
			case v == Renew && !held && rested && proofs < answersInARow:
				t.Fatalf("seed %d: granted after %d proofs in a row", seed, proofs)
			case !held && v != Renew && v != Wait:
				t.Fatalf("seed %d: verdict %d without a lease", seed, v)
			case held && v == Wait && now.Sub(renewed) > lifetime:
				t.Fatalf("seed %d: still held %s after the last answer", seed, now.Sub(renewed))
			case v == Withdraw && count(explicit) < maxFailures:
				t.Fatalf("seed %d: withdrawn after %d failures", seed, count(explicit))
			case held && p != Answered && v == Wait && count(explicit) >= maxFailures:
				t.Fatalf("seed %d: held after %d of the last %d failed", seed, count(explicit), resultsKept)
			}
			switch v {
			case Renew:
				held, renewed = true, now
			case Withdraw, Lapse:
				rest := c.Lose(p, now)
				held, restUntil, rested = false, now.Add(rest), rest > 0
			}
		}
	}
}

// count counts the failures of the results that are kept.
func count(explicit []bool) (n int) {
	for _, failed := range explicit[max(0, len(explicit)-resultsKept):] {
		if failed {
			n++
		}
	}
	return n
}
