package podstate

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"
)

var (
	modelSteps = flag.Int("podstate.steps", 400_000, "steps of the random walk, for each class of pod")
	modelSeed  = flag.Uint64("podstate.seed", 0, "seed of the random walk; 0 draws one")
)

// step is the model's clock.
const step = 250 * time.Millisecond

// class is a class of pods: which signals there are about it.
type class struct {
	name      string
	table     bool // the pod's own table bypasses it and keeps evidence: nftables
	host      bool // the switch's evidence bypasses its clients: pods that name a local address, interceptNode
	offloaded bool // the kernel program answers its hits, of which the pod's table sees the answers
	// notice is how long after the loss of its path the pod may be without answers.
	notice time.Duration
}

var classes = []class{
	{name: "steered by nftables", table: true, notice: 5 * time.Second},
	{name: "steered by nftables, offloaded", table: true, offloaded: true, notice: 12 * time.Second},
	{name: "steered by iptables", notice: 36 * time.Second},
	{name: "naming a local address or intercepted", host: true, notice: 5 * time.Second},
}

// upstream is how the servers behave that the agent forwards to, and kube-dns for names outside of the cluster.
type upstream int

const (
	good upstream = iota
	slow
	silent
)

// world is one pod, its node and what lies behind. Its agent drives the table; its kernel goes on without the agent.
type world struct {
	class
	now    time.Time
	status Status

	path     bool // from the pod to the agent and back
	running  bool // the agent runs; else it is dead or hangs
	upstream upstream
	fallback bool // is verified
	excluded bool // steer.mode does not select the pod
	// forwarded: the trial's query is one that the agent forwards.
	forwarded bool
	missing   map[Event]bool // signals that are not reported

	leaseUntil time.Time // in the kernel
	upSince    time.Time // the agent
	leaseSince time.Time

	trustedUntil time.Time // the pod's own table, see nft's pod table
	waiting      bool
	heldUntil    time.Time // the switch's bypass
	dropped      time.Time // the first delivered query that was dropped since one was not

	trialBegan time.Time // zero: none is under way
	trialEnds  time.Time
	trialSeen  bool      // an answer came
	looked     time.Time // when the agent last read the pod's own table
	checked    time.Time // when TableKnowsNothing was last reported
	sampled    time.Time // a sample's answer came to the pod, see internal/offload/bpf

	failing     time.Time // since when the fallback fails
	policyUntil time.Time // the path stays cut
}

func newWorld(c class) *world {
	w := &world{class: c, now: time.Unix(0, 0), path: true, running: true, fallback: true}
	w.status = Status{}.In(Untried, w.now)
	if c.host {
		w.status = Status{}.In(Steered, w.now) // by its resolv.conf, or by the node's interception
	}
	return w
}

func (w *world) leased() bool { return w.now.Before(w.leaseUntil) }

// on passes an event to the table and carries the effects out.
func (w *world) on(e Event) {
	if w.missing[e] {
		return
	}
	var do Effect
	w.status, do = w.status.On(e, w.now)
	if do&Trial != 0 {
		w.trialBegan, w.trialEnds, w.trialSeen = w.now, w.now.Add(time.Second), false
		if w.status.State == Steered {
			w.trialEnds = w.now.Add(3 * time.Second) // two queries, and the renewal of the lease behind them
		}
		if w.status.Young(w.now) {
			w.trialEnds = w.now.Add(300 * time.Millisecond) // two queries with a short timeout
		}
		if w.host && w.status.State == Bypassed {
			w.heldUntil = w.now // released: one query is delivered, the trial's
		}
	}
	if do&Bypass != 0 && w.host {
		w.heldUntil = w.now.Add(15 * time.Second)
		if Pause(w.now.Sub(w.status.Since)) > Soon {
			w.heldUntil = w.now.Add(4 * time.Minute)
		}
	}
	if do&Steer != 0 {
		w.heldUntil, w.trustedUntil, w.waiting = time.Time{}, w.now.Add(2*time.Second), false
	}
}

// answered reports whether the agent would answer a query now. The cache has the name, stale if need be.
func (w *world) answered() bool { return w.path && w.running }

// trialAnswered is the same of a trial's query.
func (w *world) trialAnswered() bool { return w.answered() && (!w.forwarded || w.upstream == good) }

// kubeDNS is whether kube-dns answers: the name is one outside of the cluster.
func (w *world) kubeDNS() bool { return w.upstream != silent }

// agent is what the agent does in a step.
func (w *world) agent() {
	if !w.running {
		w.upSince, w.trialBegan = time.Time{}, time.Time{}
		return
	}
	if w.upSince.IsZero() { // it may be another one, which knows what the pod's file has
		w.upSince, w.status = w.now, Status{}.In(w.status.State, w.now)
	}
	if w.now.Sub(w.upSince) >= 2*time.Second { // it has rested and was probed
		if !w.leased() {
			w.leaseSince = w.now
		}
		w.leaseUntil = w.now.Add(time.Second)
	}
	if w.leased() {
		w.on(LeaseGranted)
	} else {
		w.on(LeaseWithdrawn)
	}
	switch {
	case w.fallback:
		w.failing = time.Time{}
		w.on(FallbackVerified)
	case w.failing.IsZero():
		w.failing = w.now
	case w.now.Sub(w.failing) >= 3*time.Minute && !w.host: // what the switch delivers is in no pod's table
		w.on(FallbackLost)
	}
	switch unselected := w.status.State == Unselected; {
	case w.excluded && !unselected:
		w.on(Deselected)
	case !w.excluded && unselected:
		w.on(Selected)
	}
	w.trial()
	if w.status.State == Steered && w.now.Sub(w.looked) >= Soon {
		w.looked = w.now
		if w.table && w.waiting && w.now.After(w.trustedUntil) {
			w.on(TableBypasses)
		}
	}
	if !w.table && !w.host && w.now.Sub(w.checked) >= 30*time.Second {
		w.checked = w.now
		w.on(TableKnowsNothing)
	}
	if w.host && w.leased() && !w.dropped.IsZero() && w.now.Sub(w.dropped) >= time.Second {
		w.dropped = time.Time{}
		w.on(HostDrops)
	}
	w.on(Heartbeat)
}

// trial sees what comes of a trial.
func (w *world) trial() {
	if w.trialBegan.IsZero() {
		return
	}
	w.trialSeen = w.trialSeen || w.trialAnswered() && w.leased()
	switch {
	case w.trialSeen && w.host:
		w.on(HostDelivers)
	case w.trialSeen:
		w.waiting, w.trustedUntil = false, w.now.Add(2*time.Second)
		w.on(TrialAnswered)
	case w.now.Before(w.trialEnds):
		return
	case !w.leased() || w.leaseSince.After(w.trialBegan):
		w.on(TrialVoid)
	case w.host:
		w.on(HostDrops)
	default:
		w.on(TrialUnanswered)
	}
	w.trialBegan = time.Time{}
}

// query is one of the pod's, which the kernel program cannot answer. byAgent reports whose answer it was.
func (w *world) query() (answered, byAgent bool) {
	tableBypasses := w.table && w.waiting && w.now.After(w.trustedUntil)
	if !w.host && w.status.State != Steered || tableBypasses {
		return w.kubeDNS(), false
	}
	good := 8 * time.Second
	if !w.running {
		good = 30 * time.Second
	}
	if w.offloaded && w.status.State == Steered && !w.sampled.IsZero() && w.now.Sub(w.sampled) < good { // others of its queries
		w.waiting, w.trustedUntil = false, w.now.Add(2*time.Second)
	}
	defer func() {
		if answered {
			w.sampled = w.now
		}
	}()
	if w.now.Before(w.heldUntil) || !w.leased() {
		if answered = w.kubeDNS(); answered {
			w.waiting, w.trustedUntil = false, w.now.Add(2*time.Second)
		}
		return answered, false
	}
	answered = w.answered()
	if answered {
		w.waiting, w.trustedUntil, w.dropped = false, w.now.Add(2*time.Second), time.Time{}
		if w.host && w.status.State == Bypassed && w.running {
			w.on(HostDelivers)
		}
		return true, true
	}
	w.waiting = true
	if w.host && w.dropped.IsZero() && w.running {
		w.dropped = w.now
	}
	return false, false
}

// change is what may befall the world in a step.
func (w *world) change(r *rand.Rand) {
	toggle := func(b *bool, every int) {
		if r.IntN(every) == 0 {
			*b = !*b
		}
	}
	if w.now.After(w.policyUntil) {
		toggle(&w.path, 200)
	}
	if !w.path && r.IntN(4000) == 0 {
		w.policyUntil = w.now.Add(30 * time.Minute)
	}
	toggle(&w.running, 400)
	toggle(&w.fallback, 400)
	if !w.host { // its resolv.conf or the host's rules lead it to the agent
		toggle(&w.excluded, 400)
	}
	if r.IntN(300) == 0 {
		w.upstream = upstream(r.IntN(3))
	}
}

// violation walks, and returns the first time at which the invariant did not hold, with the reason; "" if it always did.
func (w *world) violation(r *rand.Rand, steps int) (at time.Duration, why string) {
	begun := w.now
	var silence, kube, healthy, excluded stretch
	var back time.Duration // how soon a path that works must be used again: one that failed for long is tried rarely
	for range steps {
		w.change(r)
		w.now = w.now.Add(step)
		w.agent()
		answered, byAgent := w.query()
		silent, kubeDNS := silence.of(!answered, w.now), kube.of(w.kubeDNS(), w.now)
		works := healthy.of(w.answered() && w.leased() && w.fallback && !w.excluded, w.now)
		off := excluded.of(w.excluded && w.running, w.now)
		if works == 0 {
			if back = 15 * time.Second; w.status.State == Bypassed && w.now.Sub(w.status.Since) > Patient-Soon {
				back = Rarely + 5*time.Second
			}
		}
		switch {
		case byAgent && off > step:
			return w.now.Sub(begun), "the agent answers, though steer.mode does not select the pod"
		case min(silent, kubeDNS) > w.notice:
			return w.now.Sub(begun), "the pod has no answer, though kube-dns has one"
		case !byAgent && works > back:
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

// TestModel: whatever the path, the agent, the upstreams and the policies do, a pod has an answer within its class's time if kube-dns has
// one, and a path that works is used again within 15 s, or 65 s after it was bypassed for about Patient.
func TestModel(t *testing.T) {
	for _, c := range classes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(c)
			if at, why := w.violation(seeds(t), *modelSteps); why != "" {
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
			w.leaseUntil, w.upSince, w.looked = w.now.Add(time.Second), w.now.Add(-time.Minute), w.now
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

// TestModelFindsForwardedTrials: with trials that are forwarded to an upstream, healthy pods are bypassed while it is silent. So the model
// would find such a dependence.
func TestModelFindsForwardedTrials(t *testing.T) {
	for _, c := range classes {
		if c.host {
			continue // the switch sees the trial's query arrive, whatever becomes of it
		}
		w := newWorld(c)
		w.forwarded = true
		if at, why := w.violation(seeds(t), *modelSteps); why == "" {
			t.Errorf("%s: the walk finds nothing", c.name)
		} else {
			t.Logf("%s: after %s: %s", c.name, at, why)
		}
	}
}

// TestModelNeedsEachSignal: without a class's own signal the invariant does not hold, so the signal cannot be deleted.
func TestModelNeedsEachSignal(t *testing.T) {
	signals := []Event{TableBypasses, TableBypasses, TableKnowsNothing, HostDrops} // of each class, in their order
	for i, c := range classes {
		w, e := newWorld(c), signals[i]
		w.missing = map[Event]bool{e: true}
		if at, why := w.violation(seeds(t), *modelSteps); why == "" {
			t.Errorf("%s, without %q: the walk finds nothing", c.name, eventNames[e])
		} else {
			t.Logf("%s, without %q: after %s: %s", c.name, eventNames[e], at, why)
		}
	}
}

// TestCutsOfRandomLength: after each of 100 cuts of up to ten minutes, the agent answers a pod of each class again within 15 s.
func TestCutsOfRandomLength(t *testing.T) {
	for _, c := range classes {
		w, r := newWorld(c), seeds(t)
		var longest time.Duration
		run := func(d time.Duration) (byAgent bool) {
			for end := w.now.Add(d); w.now.Before(end); {
				w.now = w.now.Add(step)
				w.agent()
				_, byAgent = w.query()
			}
			return byAgent
		}
		for range 100 {
			w.upstream = upstream(r.IntN(3))
			run(time.Duration(r.Int64N(int64(time.Minute))))
			w.path = false
			run(time.Duration(r.Int64N(int64(Patient - Soon))))
			w.path = true
			from := w.now
			for !run(step) && w.now.Sub(from) < time.Hour {
			}
			longest = max(longest, w.now.Sub(from))
		}
		if t.Logf("%s: back after %s at the latest", c.name, longest); longest > 15*time.Second {
			t.Errorf("%s: back only after %s", c.name, longest)
		}
	}
}
