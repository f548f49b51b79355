// Package lease decides when a lease is granted, renewed and withdrawn. A lease is an entry in the kernel that is valid for a short time;
// meanwhile the packet rules deliver queries to one of the agent's addresses over one protocol.
//
// The package reads no clock and does no I/O: the caller passes each observation with its time, and acts on the result.
//
// A Path decides for all leases of addresses that fall back to one cluster DNS address, by whether the agent can query kube-dns. A Target
// decides for one address and protocol, by the agent's probes. On a node that may steer pods, a lease needs the permission of both.
//
// Without an answered probe there is no lease. If the probes stop, the caller no longer renews, and the kernel lets the lease expire.
package lease

import "time"

// An agent that answers probes may still be unable to query kube-dns, because the host's own filter, its routes or a network policy treat
// packets of the node differently from those of pods. Then misses for the cluster's names fail, and pods are better off with kube-dns. The
// observations come in rounds of two seconds at most: the agent's own queries, repeated to all servers over all protocols, and meanwhile
// the fallback check, which shows whether kube-dns answers pods. A round succeeds if one of the agent's queries or one client's query was
// answered, so one lost packet, or a pod that queries names for which no server answers, does not fail it.
//
// If neither the agent's queries nor the fallback check is answered, kube-dns is probably down. Withdrawing the leases would then only
// cost pods the entries in the cache, so the leases stay. From time to time a Trial withdraws them, because a policy may let pods reach
// kube-dns while it drops the node's and the prober's packets. In a Trial, the result of a query from a pod's address decides at once. If
// there is no pod to query from, the Trial lasts for trialLength, and meanwhile clients' own retries go to kube-dns.
const (
	firstTrial    = 8 * time.Second  // from Serving's change to BothDown until a Trial: longer than most restarts of kube-dns
	trialInterval = 50 * time.Second // from any other change to BothDown until a Trial
	trialLength   = 10 * time.Second // how long a Trial lasts if no result decides earlier
	unservedLimit = 10 * time.Second // how long Fallback lasts if no round shows that kube-dns answers the agent or pods
)

// State is the reason why the addresses that fall back to one cluster DNS address may or may not have leases.
type State int

// The states. Only Serving and BothDown allow leases.
const (
	Starting State = iota // no round has had a clear result yet
	Serving               // the agent can query kube-dns
	Fallback              // kube-dns answered pods but not the agent, which must wait and be answered several times in a row
	BothDown              // kube-dns answers neither the agent nor pods, so the cache is all that pods have
	Trial                 // as BothDown, but without leases for a while, to see whether kube-dns answers pods
)

// Answer is the result of a check whether kube-dns answers.
type Answer int

// The results.
const (
	Unknown Answer = iota
	Yes
	No
)

// Round is the result of one round for one cluster DNS address: queries to the upstreams, fallback checks and queries from pods' addresses.
type Round struct {
	Answered bool   // an upstream answered a query of the agent or of a client
	Fallback Answer // whether kube-dns answered the round's fallback checks; Unknown if they differ, or if one could not be made
	Pod      Answer // whether kube-dns answered a query from a pod's address; Unknown under a lease, because the agent would answer it
}

// event is what a Round means for the state table.
type event int

const (
	answered event = iota // an upstream answers the agent's or a client's query
	served                // kube-dns does not answer the agent, but answers pods
	down                  // kube-dns does not answer the agent, and the fallback check failed
	unclear               // kube-dns does not answer the agent, and the fallback check gave no clear result
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

// Path is the state of the path to one cluster DNS address. The zero value is Starting.
type Path struct {
	State  State
	until  time.Time // in Fallback: no change to Serving before it; in BothDown: no Trial before it; in Trial: the end if no result decides
	since  time.Time // in Serving: when it began; in Fallback: since when no round showed that kube-dns answers, zero if the last one did
	inARow int       // number of consecutive rounds, up to the last one, in which an upstream answered
	losses int       // changes to Fallback from states other than Starting, since the last call of forgive
}

// Serve returns a Path in state Serving. An agent that took the node over starts with it, so that its predecessor's leases stay in force
// until its own queries have results.
func Serve(since time.Time) Path { return Path{State: Serving, since: since} }

// Allows reports whether leases are allowed.
func (w Path) Allows() bool { return w.State == Serving || w.State == BothDown }

// transition is a row of the state table: what an event does in a state. Next takes the first row whose state, event and condition match;
// if none does, the state stays.
type transition struct {
	from State
	on   event
	when func(w Path, r Round, now time.Time) bool
	to   State
	set  func(w *Path, now time.Time)
}

// transitions is the state table.
var transitions = []transition{
	{Starting, answered, always, Serving, begin},
	{Starting, served, always, Fallback, restAtFirst},
	{Starting, down, always, Trial, deadline(trialLength)}, // there was no lease yet, so a Trial costs nothing

	{Serving, answered, forgivable, Serving, forgive},
	{Serving, served, always, Fallback, lose},
	{Serving, down, always, BothDown, deadline(firstTrial)},

	{Fallback, answered, rested, Serving, begin},
	{Fallback, answered, always, Fallback, noteAnswer},
	{Fallback, served, always, Fallback, noteAnswer},
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

// Next returns the Path after one round.
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

// rested reports whether Fallback may change to Serving: its waiting time is over, and an upstream answered in several rounds in a row.
func rested(w Path, r Round, now time.Time) bool { return due(w, r, now) && w.inARow >= answersInARow }

func unserved(w Path, _ Round, now time.Time) bool {
	return !w.since.IsZero() && now.Sub(w.since) >= unservedLimit
}

// Changes of transitions.

func begin(w *Path, now time.Time) { w.since = now }

func forgive(w *Path, _ time.Time) { w.losses = 0 }

// lose counts a loss, and sets the time before which Fallback does not change to Serving.
func lose(w *Path, now time.Time) {
	w.losses++
	restAtFirst(w, now)
}

// restAtFirst sets the time before which Fallback does not change to Serving. Starting has had no lease, so its change to Fallback calls
// only this, and counts no loss.
func restAtFirst(w *Path, now time.Time) {
	w.since = time.Time{}
	w.until = now.Add(max(restSilent, restAfter(w.losses)))
}

func noteAnswer(w *Path, _ time.Time) { w.since = time.Time{} }

func noteUnserved(w *Path, now time.Time) {
	if w.since.IsZero() {
		w.since = now
	}
}

func deadline(d time.Duration) func(*Path, time.Time) {
	return func(w *Path, now time.Time) { w.until = now.Add(d) }
}
