package lease

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

// TestTargetLoses checks what a loss costs, by the probe that it came of and the losses before it.
func TestTargetLoses(t *testing.T) {
	now := time.Unix(1000, 0)
	for before, seconds := range map[int]time.Duration{0: 0, 1: 8, 2: 16, 3: 32, 4: 60, 5: 60, 1000: 60} {
		for probe := Answered; probe <= Failed; probe++ {
			rest, losses := seconds*time.Second, before+1
			switch {
			case before == 0 && probe == Silent:
				rest = 2 * time.Second
			case before == 0 && probe == Slow: // a first loss to late answers counts as a second one
				rest, losses = 8*time.Second, 2
			}
			got := Target{failed: []bool{true}, inARow: 2, losses: before, heldSince: now.Add(-time.Second)}
			want := Target{failed: got.failed, losses: losses, heldSince: got.heldSince, restUntil: now.Add(rest), rested: rest > 0}
			name := fmt.Sprintf("probe %d after %d losses", probe, before)
			testutil.Equal(t, name+": rest", rest, got.Lose(probe, now))
			testutil.Equal(t, name, want, got, cmp.AllowUnexported(Target{}))
		}
	}
}

// TestTargetWalk gives a target random probes, and checks what must hold of its lease whatever came before.
func TestTargetWalk(t *testing.T) {
	const lifetime = 800 * time.Millisecond
	seen := map[Verdict]bool{}
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a repeatable walk
		var renewed, restUntil time.Time
		c, now, held := Target{}, time.Unix(1000, 0), false
		for range 4000 {
			now = now.Add(time.Duration(1+r.IntN(300)) * time.Millisecond)
			p := Probe(max(0, r.IntN(12)-7)) // most are answered, so that leases are granted
			expired := now.Sub(renewed) > lifetime
			v := c.Next(p, held, expired, now)
			seen[v] = true
			switch {
			case v == Renew && (p != Answered || !held && now.Before(restUntil)), held && expired && v == Wait, !held && v > Renew:
				t.Fatalf("seed %d: probe %d, held %t, expired %t, rest until %s: verdict %d at %s", seed, p, held, expired, restUntil, v, now)
			case v == Renew:
				held, renewed = true, now
			case v != Wait:
				held, restUntil = false, now.Add(c.Lose(p, now))
			}
		}
	}
	testutil.Equal(t, "verdicts that the walk came to", int(Lapse)+1, len(seen))
}
