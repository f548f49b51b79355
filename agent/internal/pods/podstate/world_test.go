package podstate

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/neardns/neardns/agent/internal/node/lease"
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
	slow          // an answer takes slowTime
	silent
)

// slowTime is longer than the pod's own table waits for an answer.
const slowTime = 3 * time.Second

// process is what the agent's process does.
type process int

const (
	alive   process = iota
	deaf            // its server answers nothing; its other loops go on
	stopped         // it does nothing, and goes on with what it knew
	dead            // its successor knows what the pod's file has
)

// lateAnswer is the answer to a query for a slow name, which is on its way.
type lateAnswer struct {
	at      time.Time
	byAgent bool
}

// world is one pod, its node and what lies behind. Its agent drives the table; its kernel goes on without the agent.
type world struct {
	class
	now    time.Time
	status Status

	path     bool // from the pod to the agent and back
	process  process
	upstream upstream
	kubeUp   bool // kube-dns answers
	way      bool // the fallback leads to kube-dns
	excluded bool // steer.mode does not select the pod
	misses   bool // the pod queries names that no cache has
	others   bool // the node has other steered pods, from which the agent can query kube-dns
	// forwarded: the trial's query is one that the agent forwards.
	forwarded bool
	missing   map[Event]bool // signals that are not reported

	leaseUntil time.Time // in the kernel
	held       bool      // the agent believes that it has the lease, since leaseSince
	leaseSince time.Time
	restUntil  time.Time // no lease before
	lucky      bool      // the first probe after a stop is answered, so the lease needs no rest
	up         bool      // the agent has begun
	queries    lease.Path
	nextRound  time.Time // of the agent's own queries

	verified  bool      // the fallback, as far as the agent knows; the record is on disk
	lost      bool      // for good, by the agent's judgement
	failures  int       // checks in a row
	failing   time.Time // since when the checks fail
	nextCheck time.Time

	trustedUntil time.Time // the pod's own table, see nft's pod table
	waiting      bool
	waitingUntil time.Time
	late         []lateAnswer
	heldUntil    time.Time // the switch's bypass
	dropped      time.Time // the first delivered query that was dropped since one was not

	trialBegan time.Time // zero: none is under way
	trialEnds  time.Time
	trialSeen  bool      // an answer came
	looked     time.Time // when the agent last read the pod's own table
	checked    time.Time // when TableKnowsNothing was last reported
	sampled    time.Time // a sample's answer came to the pod, see internal/offload/bpf
	beat       time.Time // the agent's heartbeat for the kernel program

	policyUntil  time.Time // the path stays cut
	processUntil time.Time // the process stays as it is
	// When it was last so: the path was cut; the agent answered nothing; it did nothing, and the fallback failed; names were slow.
	cut, quiet, stranded, slowAt time.Time

	wrong string // a trial that bypassed a path which worked
}

func newWorld(c class) *world {
	w := &world{class: c, now: time.Unix(0, 0), path: true, kubeUp: true, way: true, verified: true, others: true}
	w.status = Status{}.In(Untried, w.now)
	if c.host {
		w.status = Status{}.In(Steered, w.now) // by its resolv.conf, or by the node's interception
	}
	return w
}

func (w *world) leased() bool { return w.now.Before(w.leaseUntil) }

// acts reports whether the agent's loops run, apart from its server.
func (w *world) acts() bool { return w.process == alive || w.process == deaf }

// fallback reports whether a query that falls back reaches kube-dns, and kube-dns answers.
func (w *world) fallback() bool { return w.kubeUp && w.way }

// on passes an event to the table and carries the effects out.
func (w *world) on(e Event) {
	if w.missing[e] {
		return
	}
	var do Effect
	before := w.status
	w.status, do = w.status.On(e, w.now)
	if e == TrialUnanswered && before.State != Bypassed && w.cut.Before(w.trialBegan) &&
		!(before.Young(w.trialBegan) && !w.quiet.Before(w.trialBegan)) { // its timeout is short
		w.wrong = "a trial bypasses the pod, though its path works"
	}
	if do&Trial != 0 {
		w.trialBegan, w.trialEnds, w.trialSeen = w.now, w.now.Add(time.Second), false
		if w.status.State == Steered {
			w.trialEnds = w.now.Add(3 * time.Second) // two queries, and the renewal of the lease behind them
		}
		if w.status.Young(w.now) {
			w.trialEnds = w.now.Add(300 * time.Millisecond) // two queries with a short timeout
		}
		if w.host {
			w.trialSeen = w.path && w.leased() // the switch delivers it, whatever becomes of the agent
			if w.status.State == Bypassed {
				w.heldUntil = w.now // released: one query is delivered, the trial's
			}
		}
	}
	if do&Bypass != 0 {
		w.late = slices.DeleteFunc(w.late, func(a lateAnswer) bool { return a.byAgent })
		if w.host {
			w.heldUntil = w.now.Add(15 * time.Second)
			if Pause(w.now.Sub(w.status.Since)) > Soon {
				w.heldUntil = w.now.Add(4 * time.Minute)
			}
		}
	}
	if do&Steer != 0 {
		w.heldUntil, w.trustedUntil, w.waiting = time.Time{}, time.Time{}, false
	}
}

// answered reports whether the agent would answer a query now. The cache has the name, stale if need be, or the agent answers SERVFAIL.
func (w *world) answered() bool { return w.path && w.process == alive }

// trialAnswered is the same of a trial's query.
func (w *world) trialAnswered() bool { return w.answered() && (!w.forwarded || w.upstream == good) }

// kubeDNS is whether kube-dns answers: the name is one outside of the cluster.
func (w *world) kubeDNS() bool { return w.kubeUp && w.upstream != silent }

// agent is what the agent does in a step.
func (w *world) agent() {
	switch w.process {
	case dead:
		w.up, w.held, w.trialBegan = false, false, time.Time{}
		return
	case stopped:
		return
	case alive, deaf:
	}
	if !w.up {
		w.up, w.status = true, Status{}.In(w.status.State, w.now)
		w.queries, w.nextRound, w.restUntil = lease.Path{}, w.now, w.now.Add(2*time.Second)
		w.lost, w.failures, w.nextCheck = false, 0, w.now
	}
	w.renew()
	w.check()
	if w.held && w.leased() {
		w.on(LeaseGranted)
	} else {
		w.on(LeaseWithdrawn)
	}
	if w.verified {
		w.on(FallbackVerified)
	}
	if w.lost && !w.host { // what the switch delivers is in no pod's table
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
		if w.table && w.tableBypasses() {
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

// renew renews the lease, if the agent's probe is answered and its own queries allow that.
func (w *world) renew() {
	if !w.now.Before(w.nextRound) {
		round := lease.Round{Answered: w.kubeUp}
		if !w.kubeUp {
			round.Fallback = lease.No
			if off := !w.queries.Allows() && w.queries.State != lease.Starting; off && w.others {
				round.Pod = lease.No
			}
		}
		w.queries = w.queries.Next(round, w.now)
		switch w.nextRound = w.now.Add(500 * time.Millisecond); {
		case !w.kubeUp && w.queries.Allows():
			w.nextRound = w.now.Add(2500 * time.Millisecond)
		case !w.kubeUp:
			w.nextRound = w.now.Add(1500 * time.Millisecond)
		}
	}
	switch {
	case !w.queries.Allows():
		w.held, w.leaseUntil = false, w.now // withdrawn
	case w.held && !w.leased(): // no probe was answered in time
		if w.held = false; !w.lucky {
			w.restUntil = w.now.Add(2 * time.Second)
		}
	}
	w.lucky = false
	if w.process != alive || !w.queries.Allows() || w.now.Before(w.restUntil) {
		return
	}
	if !w.held {
		w.held, w.leaseSince = true, w.now
	}
	w.leaseUntil = w.now.Add(time.Second)
}

// check is the fallback check.
func (w *world) check() {
	if w.now.Before(w.nextCheck) {
		return
	}
	if w.fallback() {
		w.verified, w.lost, w.failures, w.nextCheck = true, false, 0, w.now.Add(30*time.Second)
		return
	}
	if w.failures++; w.failures == 1 {
		w.failing = w.now
	}
	w.verified = w.verified && w.failures < 3
	w.lost = w.lost || w.kubeUp && w.now.Sub(w.failing) >= 3*time.Minute
	w.nextCheck = w.now.Add(2 * time.Second)
}

// trial sees what comes of a trial.
func (w *world) trial() {
	if w.trialBegan.IsZero() {
		return
	}
	sameLease := w.held && w.leased() && !w.leaseSince.After(w.trialBegan)
	if over := w.now.Sub(w.trialEnds); over > step && !w.host && !w.trialSeen { // the agent was stopped meanwhile
		switch {
		case w.status.State == Bypassed:
			w.on(TrialUnanswered) // there was one query
		case !sameLease:
			w.on(TrialVoid)
		default: // it sends its second query
			w.trialEnds = w.now.Add(time.Second)
			return
		}
		w.trialBegan = time.Time{}
		return
	}
	w.trialSeen = w.trialSeen || !w.host && w.trialAnswered() && w.leased()
	switch {
	case w.trialSeen && w.host:
		w.on(HostDelivers)
	case w.trialSeen:
		w.trust()
		w.on(TrialAnswered)
	case w.now.Before(w.trialEnds):
		return
	case !sameLease:
		w.on(TrialVoid)
	case w.host:
		w.on(HostDrops)
	default:
		w.on(TrialUnanswered)
	}
	w.trialBegan = time.Time{}
}

// trust is what an answer does to the pod's own table.
func (w *world) trust() { w.waiting, w.trustedUntil = false, w.now.Add(2*time.Second) }

// tableBypasses reports whether the pod's own table sends a query to kube-dns.
func (w *world) tableBypasses() bool {
	return w.waiting && w.now.Before(w.waitingUntil) && !w.now.Before(w.trustedUntil)
}

// arrived is what comes now of the pod's earlier queries, for slow names.
func (w *world) arrived() (answered, byAgent bool) {
	for len(w.late) > 0 && !w.now.Before(w.late[0].at) {
		a := w.late[0]
		w.late = w.late[1:]
		switch {
		case a.byAgent && w.answered():
			w.trust()
			answered, byAgent = true, true
		case !a.byAgent && w.kubeDNS():
			if w.now.Before(w.trustedUntil) {
				w.trust()
			}
			answered = true
		}
	}
	return answered, byAgent
}

// query is one of the pod's, which the kernel program cannot answer. byAgent reports whose answer came in this step.
func (w *world) query() (answered, byAgent bool) {
	answered, byAgent = w.arrived()
	steered := (w.host || w.status.State == Steered) && !(w.table && w.tableBypasses())
	answer := func(fromAgent bool) {
		switch {
		case w.misses && w.upstream == slow:
			w.late = append(w.late, lateAnswer{w.now.Add(slowTime), fromAgent})
			return
		case steered:
			w.trust()
			w.sampled = w.now
		}
		answered, byAgent = true, fromAgent
	}
	if !steered {
		if w.kubeDNS() {
			answer(false)
		}
		return answered, byAgent
	}
	if known := 8 * time.Second; w.offloaded && !w.sampled.IsZero() { // others of its queries
		if w.now.Sub(w.beat) > 2500*time.Millisecond {
			known = 30 * time.Second
		}
		if w.now.Sub(w.sampled) < known {
			w.trust()
		}
	}
	if w.table && !w.now.Before(w.trustedUntil) { // the first query without an answer
		w.waiting, w.waitingUntil, w.trustedUntil = true, w.now.Add(10*time.Minute), w.now.Add(2*time.Second)
	}
	if w.now.Before(w.heldUntil) || !w.leased() {
		if w.kubeDNS() && w.way {
			answer(false)
		}
		return answered, byAgent
	}
	switch {
	case w.path: // the query arrives
		w.dropped = time.Time{}
		if w.host && w.status.State == Bypassed && w.acts() {
			w.on(HostDelivers)
		}
	case w.host && w.dropped.IsZero() && w.acts():
		w.dropped = w.now
	}
	if w.answered() {
		answer(true)
	}
	return answered, byAgent
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
	if w.process == alive && r.IntN(400) == 0 {
		longest := 4 * time.Second
		if r.IntN(2) == 0 {
			longest = 4 * time.Minute
		}
		w.process, w.processUntil = process(1+r.IntN(3)), w.now.Add(time.Duration(r.Int64N(int64(longest))))
	} else if w.process != alive && !w.now.Before(w.processUntil) {
		w.process, w.lucky = alive, w.process == stopped && r.IntN(2) == 0
	}
	rarely := func(b *bool, usual bool) { // an eighth of the time, it is not as usual
		if *b == usual {
			toggle(b, 2100)
		} else {
			toggle(b, 300)
		}
	}
	rarely(&w.kubeUp, true)
	rarely(&w.way, true)
	toggle(&w.misses, 100)
	toggle(&w.others, 1000)
	if !w.host { // its resolv.conf or the host's rules lead it to the agent
		rarely(&w.excluded, false)
	}
	if r.IntN(300) == 0 {
		w.upstream = upstream(r.IntN(3))
	}
}

// observe remembers when it was last so.
func (w *world) observe() {
	if !w.path {
		w.cut = w.now
	}
	if w.process != alive {
		w.quiet = w.now
	}
	if w.acts() {
		w.beat = w.now
	} else if !w.way {
		w.stranded = w.now
	}
	if w.misses && w.upstream == slow || len(w.late) > 0 {
		w.slowAt = w.now
	}
}

// reachable reports whether kube-dns answers the pod, if its queries go there. If none of neardns's rules in the pod notices a missing
// answer, a steered pod needs the fallback.
func (w *world) reachable() bool {
	return w.kubeDNS() && (w.way || w.table || !w.host && w.status.State != Steered)
}

// usable reports whether the pod's queries should go to the agent, or will soon. The exception is a pod that is not steered while kube-dns
// or the way to it fails: without a verified fallback it is not steered, even if the agent has an answer and kube-dns has none (D-079).
func (w *world) usable(exception bool) bool {
	return w.answered() && w.leased() && !w.excluded && (!exception || w.host || w.status.State == Steered || w.fallback())
}
