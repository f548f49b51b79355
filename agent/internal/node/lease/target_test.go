package lease

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestProbes gives sequences of probes, 150 ms apart, to a target that has its lease, and checks the last verdict.
func TestProbes(t *testing.T) {
	const ok, slow, refused, silent = Answered, Slow, Failed, Silent
	for _, tc := range []struct {
		name    string
		results []Probe
		want    Verdict
	}{
		{"answered", []Probe{ok}, Renew},
		{"one slow answer costs nothing yet", []Probe{ok, slow}, Wait},
		{"and the next quick one renews", []Probe{ok, slow, ok}, Renew},
		{"two of five", []Probe{slow, ok, ok, ok, slow}, Wait},
		{"three of five", []Probe{slow, ok, slow, ok, slow}, Withdraw},
		{"three slow at once", []Probe{slow, slow, slow}, Withdraw},
		{"three of six", []Probe{slow, ok, ok, slow, ok, slow}, Wait},
		{"kinds add up", []Probe{slow, refused, slow}, Withdraw},
		{"two refusals", []Probe{refused, refused}, Wait},
		{"silence is not counted", []Probe{silent, silent, silent, silent}, Wait},
		{"silence ends with the lifetime", []Probe{silent, silent, silent, silent, silent, silent, silent}, Lapse},
		{"a cancelled probe says nothing", []Probe{Canceled}, Wait},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var c Target
			now := time.Unix(1000, 0)
			proven, got := now, Wait
			for _, f := range tc.results {
				now = now.Add(150 * time.Millisecond)
				if got = c.Next(f, true, now.Sub(proven) > 800*time.Millisecond, now); got == Renew {
					proven = now
				}
			}
			testutil.Equal(t, "verdict", tc.want, got)
		})
	}
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
