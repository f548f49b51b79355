// Package lease decides when a lease is granted, renewed and withdrawn. It is pure: it knows no kernel, no network and no clock. Each
// call takes the time and one observation, and returns what to do.
//
// A Path decides for all leases behind one cluster DNS address, by whether the agent can query kube-dns. A Target decides for one
// address and protocol, by the agent's probes. A lease needs both.
//
// Without an answered probe there is no lease. If observations stop, the caller no longer renews, and the kernel lets the lease expire.
package lease

import "time"

// An agent that answers probes may still be unable to query kube-dns: the host's own filter, its routes or a policy keep the node from
// what they let pods do. Then every name that is not cached fails, and pods are better off with kube-dns. The observations are rounds
// of about two seconds: the agent's own query, repeated in every way, and next to it the fallback check, which shows whether kube-dns
// answers pods. One answered query in a round is enough, and so is one answered client; a lost packet, a slow kube-dns or a pod that
// queries dead names never fails a round.
//
// If neither works, which mostly is an outage of kube-dns, withdrawing the leases would only cost pods what the cache still has. They
// stay, but for a trial now and then: a policy may let pods reach kube-dns while it drops the node's and the prober's packets. In a
// trial one pod's query decides at once; if there is no pod to query from, the trial lasts, and pods' own retries find out.
const (
	firstTrial    = 8 * time.Second // with the round before it, longer than most restarts of kube-dns take
	trialInterval = 50 * time.Second
	trialLength   = 10 * time.Second
	unservedLimit = 10 * time.Second // in Fallback, without an answer from kube-dns
)

// State decides about the leases behind one cluster DNS address.
type State int

// The states. Only Serving and BothDown allow leases.
const (
	Starting State = iota // no query of the agent was answered yet
	Serving               // the agent can query kube-dns
	Fallback              // it cannot, and kube-dns answers pods
	BothDown              // neither works: the cache is all that pods have
	Trial                 // neither works, and for a while pods are sent to kube-dns to see whether it answers them
)

// Answer is the result of a check.
type Answer int

// The results.
const (
	Unknown Answer = iota
	Yes
	No
)

// Round is what one round of queries observed.
type Round struct {
	Answered bool   // a query of the agent's own, or a client's
	Fallback Answer // whether kube-dns answered the fallback check throughout the round
	Pod      Answer // whether kube-dns answered a query from a pod's address; Unknown under a lease, which would catch the query
}

// event is what a round means.
type event int

const (
	answered event = iota // the agent can query kube-dns
	served                // it cannot, and kube-dns answers pods
	down                  // it cannot, and the fallback check failed
	unclear               // it cannot, and the fallback check showed nothing
)

func (r Round) event() event {
	switch {
	case r.Answered:
		return answered
	case r.Fallback == Yes || r.Pod == Yes:
		return served
	case r.Fallback == No:
		return down
	}
	return unclear
}

// Path is the state of one cluster DNS address. The zero value is Starting.
type Path struct {
	State  State
	until  time.Time // Fallback: no lease before. BothDown: the next trial begins. Trial: it ends
	since  time.Time // Serving: its begin. Fallback: since when kube-dns does not answer; zero while it does
	inARow int       // answered rounds
	losses int       // not forgiven yet
}

// Serve is a Path that serves, as that of an inherited node does until its own queries show more.
func Serve(since time.Time) Path { return Path{State: Serving, since: since} }

// Allows reports whether leases are allowed.
func (w Path) Allows() bool { return w.State == Serving || w.State == BothDown }

// transition is a row of the table: what a round does in a state. The first row whose state, event and condition match counts; if none
// does, nothing changes.
type transition struct {
	from State
	on   event
	when func(w Path, r Round, now time.Time) bool
	to   State
	set  func(w *Path, now time.Time)
}

// transitions is the policy.
var transitions = []transition{
	{Starting, answered, always, Serving, begin},
	{Starting, served, always, Fallback, restAtFirst},
	{Starting, down, always, Trial, deadline(trialLength)}, // no pod has a lease to lose yet

	{Serving, answered, forgivable, Serving, forgive},
	{Serving, served, always, Fallback, lose},
	{Serving, down, always, BothDown, deadline(firstTrial)},

	{Fallback, answered, rested, Serving, begin},
	{Fallback, served, always, Fallback, func(w *Path, _ time.Time) { w.since = time.Time{} }},
	{Fallback, down, unserved, BothDown, deadline(trialInterval)},
	{Fallback, down, always, Fallback, noteUnserved},
	{Fallback, unclear, unserved, BothDown, deadline(trialInterval)},
	{Fallback, unclear, always, Fallback, noteUnserved},

	{BothDown, answered, always, Serving, begin},
	{BothDown, served, always, Fallback, lose},
	{BothDown, down, due, Trial, deadline(trialLength)},
	{BothDown, unclear, due, Trial, deadline(trialLength)},

	{Trial, answered, always, Serving, begin},
	{Trial, served, always, Fallback, lose},
	{Trial, down, podFailedOrDue, BothDown, deadline(trialInterval)},
	{Trial, unclear, podFailedOrDue, BothDown, deadline(trialInterval)},
}

// Next is the Path after one round.
func (w Path) Next(r Round, now time.Time) Path {
	on := r.event()
	w.inARow++
	if on != answered {
		w.inARow = 0
	}
	for _, t := range transitions {
		if t.from == w.State && t.on == on && t.when(w, r, now) {
			w.State = t.to
			t.set(&w, now)
			return w
		}
	}
	return w
}

// Conditions of transitions.

func always(Path, Round, time.Time) bool { return true }

func due(w Path, _ Round, now time.Time) bool { return !now.Before(w.until) }

func podFailedOrDue(w Path, r Round, now time.Time) bool { return r.Pod == No || due(w, r, now) }

func forgivable(w Path, _ Round, now time.Time) bool {
	return w.losses > 0 && now.Sub(w.since) >= forgiveAfter
}

// rested: one answer is not enough after a loss.
func rested(w Path, r Round, now time.Time) bool { return due(w, r, now) && w.inARow >= answersInARow }

func unserved(w Path, _ Round, now time.Time) bool {
	return !w.since.IsZero() && now.Sub(w.since) >= unservedLimit
}

// Changes of transitions.

func begin(w *Path, now time.Time) { w.since = now }

func forgive(w *Path, _ time.Time) { w.losses = 0 }

// lose counts a loss and rests.
func lose(w *Path, now time.Time) {
	w.losses++
	restAtFirst(w, now)
}

// restAtFirst rests without a loss: there was no lease.
func restAtFirst(w *Path, now time.Time) {
	w.since = time.Time{}
	w.until = now.Add(max(restSilent, restAfter(w.losses)))
}

func noteUnserved(w *Path, now time.Time) {
	if w.since.IsZero() {
		w.since = now
	}
}

func deadline(d time.Duration) func(*Path, time.Time) {
	return func(w *Path, now time.Time) { w.until = now.Add(d) }
}
