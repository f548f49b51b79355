package podstate

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/neardns/neardns/agent/internal/node/lease"
)

var (
	modelSteps = flag.Int("podstate.steps", 400_000, "steps of the random walk, for each class of pod")
	modelSeed  = flag.Uint64("podstate.seed", 1, "seed of the random walk; 0 draws one")
)

// violation walks, and returns the first time at which the invariant did not hold, with the reason; "" if it always did.
//
// The invariant: if kube-dns or the agent can answer the pod, it has an answer within its class's time, and a path to the agent that works
// is used again within 15 s, or 65 s if it was bypassed for ten minutes. The exception is that of usable.
func (w *world) violation(r *rand.Rand, steps int, exception bool) (at time.Duration, why string) {
	begun := w.now
	var silence, kube, healthy, excluded, unused stretch
	var back time.Duration // how soon a path that works must be used again: one that failed for long is tried rarely
	for range steps {
		w.change(r)
		w.now = w.now.Add(step)
		w.observe()
		w.agent()
		answered, byAgent := w.query()
		// The agent may answer slow names, but a path that fails every few seconds lets no answer through.
		underway := w.slowAt.Equal(w.now) && w.answered() && w.leased()
		silent, kubeDNS := silence.of(!answered && !underway, w.now), kube.of(w.reachable(), w.now)
		works := healthy.of(w.usable(exception), w.now)
		off, away := excluded.of(w.excluded && w.acts(), w.now), unused.of(!byAgent, w.now)
		if works == 0 {
			if back = 15 * time.Second; w.status.State == Bypassed && w.now.Sub(w.status.Since) > Patient-Soon {
				back = Rarely + 5*time.Second
			}
		}
		notice, late := w.notice, time.Duration(0)
		if !w.slowAt.Before(silence.since) || !w.slowAt.Before(unused.since) {
			late = slowTime
		}
		if w.offloaded && !w.stranded.Before(silence.since) {
			notice += 22 * time.Second // without the agent's heartbeat, a sample's answer counts for 30 s in place of 8
		}
		switch {
		case w.wrong != "":
			return w.now.Sub(begun), w.wrong
		case byAgent && off > step:
			return w.now.Sub(begun), "the agent answers, though steer.mode does not select the pod"
		case min(silent, kubeDNS) > notice+late:
			return w.now.Sub(begun), "the pod has no answer, though kube-dns has one"
		case !byAgent && works > back+late && away > late:
			return w.now.Sub(begun), "the agent does not answer, though the path to it works"
		}
	}
	return 0, ""
}

// stretch is how long something has been so without a break.
type stretch struct{ since time.Time }

func (s *stretch) of(so bool, now time.Time) time.Duration {
	if !so {
		s.since = time.Time{}
		return 0
	}
	if s.since.IsZero() {
		s.since = now
	}
	return now.Sub(s.since)
}

// seeds returns a source of the walk, and logs how to repeat it.
func seeds(t *testing.T) *rand.Rand {
	seed := *modelSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat with: -podstate.seed %d -podstate.steps %d", seed, *modelSteps)
	return rand.New(rand.NewPCG(seed, 0))
}

// TestModel: whatever the path, the agent, the upstreams, kube-dns and the policies do, the invariant of violation holds.
func TestModel(t *testing.T) {
	for _, c := range classes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(c)
			if at, why := w.violation(seeds(t), *modelSteps, true); why != "" {
				t.Errorf("after %s: %s: %+v", at, why, *w)
			}
		})
	}
}

// TestNewPodUnderPolicy: a pod that a policy lets reach only kube-dns from its ADD on loses no query. If the policy comes soon after the
// pod, queries are lost for at most a second and a step of the model. When the policy ends, the agent answers within 15 s.
func TestNewPodUnderPolicy(t *testing.T) {
	for _, c := range classes {
		if c.host {
			continue // it is steered by its resolv.conf
		}
		for _, after := range []time.Duration{0, step, 2 * time.Second, 8 * time.Second} {
			w := newWorld(c)
			w.up, w.held, w.leaseUntil, w.looked = true, true, w.now.Add(time.Second), w.now
			w.queries = lease.Serve(w.now)
			begun, lost, byAgent := w.now, time.Duration(-1), false
			for ; w.now.Sub(begun) < after+5*time.Minute; w.now = w.now.Add(step) {
				if w.path = w.now.Sub(begun) < after; w.path {
					lost = 0
				}
				w.agent()
				if answered, _ := w.query(); !answered {
					lost = w.now.Sub(begun) - after
				}
			}
			if after == 0 && lost >= 0 || lost > time.Second+step {
				t.Errorf("%s, policy after %s: a query is lost %s later", c.name, after, lost)
			}
			for w.path, begun = true, w.now; !byAgent && w.now.Sub(begun) < time.Hour; w.now = w.now.Add(step) {
				w.agent()
				_, byAgent = w.query()
			}
			if back := w.now.Sub(begun); back > 15*time.Second {
				t.Errorf("%s, policy after %s: back %s after its end", c.name, after, back)
			}
		}
	}
}

// TestModelFinds: the walk finds a violation if trials are forwarded to an upstream, because healthy pods are then bypassed while it is
// silent; without the exception of usable, of a pod that stays with a dead kube-dns although the agent has answers; and without a class's
// own signal. So the model would find such a dependence, the exception names a case that the walk reaches, and no signal can be deleted.
func TestModelFinds(t *testing.T) {
	signals := []Event{TableBypasses, TableBypasses, TableKnowsNothing, HostDrops} // of each class, in their order
	for i, c := range classes {
		finds := func(what string, exception bool, change func(w *world)) {
			t.Helper()
			w := newWorld(c)
			change(w)
			if at, why := w.violation(seeds(t), *modelSteps, exception); why == "" {
				t.Errorf("%s, %s: the walk finds nothing", c.name, what)
			} else {
				t.Logf("%s, %s: after %s: %s", c.name, what, at, why)
			}
		}
		finds(fmt.Sprintf("without %q", eventNames[signals[i]]), true, func(w *world) { w.missing = map[Event]bool{signals[i]: true} })
		if !c.host { // the switch sees the trial's query arrive, whatever becomes of it
			finds("with forwarded trials", true, func(w *world) { w.forwarded = true })
			finds("without the exception", false, func(*world) {})
		}
	}
}
