// Package podstate decides, after the plugin's ADD, whether the agent or kube-dns answers a pod's DNS queries, and when a trial of the
// pod's path runs.
//
// One table maps each state and event to the next state and to the effects. The package reads no clock and changes nothing outside:
// callers report what they observe as events, with the time, and carry out the effects. A bypassed path is tried every Soon, or every
// Rarely after it was bypassed for Patient, and may be steered again after an answered trial. A new path is tried every Retry while it is
// young, so that a policy that comes just after the pod's start costs it few queries.
//
// On failure: if a caller cannot carry out an effect, it reports the next event with the state that is really in force.
package podstate

import "time"

// State is the state of a path. A path is a pod's queries to one cluster DNS address; its state decides whether the cache or kube-dns
// answers.
type State int

// The states. In a row of the table, zero as the next state stands for no change.
const (
	Untried    State = iota + 1 // pending: kube-dns answers, and no trial from the pod's netns has a result yet
	Waiting                     // pending: kube-dns answers until the fallback is verified
	Steered                     // the agent answers while it has its lease
	Bypassed                    // kube-dns answers, because queries to the agent or its answers were lost
	Unselected                  // kube-dns answers, and no trial runs, until the configuration selects the pod
	states
)

// Event is one signal about a path.
type Event int

// The events.
const (
	TrialAnswered     Event = iota // queries from the pod's netns reached the agent and were answered, over each protocol tried
	TrialUnanswered                // a query under a lease was not answered; unless the path was bypassed, the lease was renewed after it
	TrialVoid                      // the trial shows nothing, for example because the lease was missing at times, or kube-dns answered
	TrialFailed                    // the agent could not run a trial, or could not carry out its result
	TableBypasses                  // the pod's own table sends queries to kube-dns, because answers of the agent do not arrive
	TableKnowsNothing              // reported at intervals for a pod whose table keeps no record of missing answers (iptables)
	HostDrops                      // the switch delivered queries of the pod, and the host's own filter dropped them
	HostDelivers                   // a query of a client that the switch had bypassed passed the host's filters
	FallbackVerified               // kube-dns answers queries on the fallback path
	FallbackLost                   // kube-dns no longer answers on the fallback path, for good
	LeaseGranted                   // the agent has the leases that a trial of the path needs
	LeaseWithdrawn                 // the agent lacks a lease that a trial of the path needs
	Selected                       // the configuration (steer.mode, adoptPods) selects the pod
	Deselected                     // the configuration does not select the pod
	Heartbeat                      // reported at intervals while the agent runs, so that due trials start
	events
)

// Effect is a set of actions that follow from an event, which the caller must carry out.
type Effect int

// The effects, as bits.
const (
	Steer  Effect = 1 << iota // add the path to the pod's table
	Bypass                    // remove the path from the pod's table, or have the switch bypass the client
	Trial                     // start a trial now, and report its result
)

// The pauses between two trials of a path.
const (
	Retry   = 300 * time.Millisecond // of a path without any result, and of a young path
	Soon    = 10 * time.Second       // of a bypassed path
	Rarely  = time.Minute            // of a path bypassed for longer than Patient: a permanent policy then drops few queries
	Patient = 10 * time.Minute       // how long a bypassed path is tried every Soon
)

// Youth is how long a path counts as young after Status.Untried. Network policies often follow a pod's start by some seconds.
const Youth = 10 * time.Second

// Pause returns the time between two trials of a path that has been bypassed for the given time.
func Pause(bypassed time.Duration) time.Duration {
	if bypassed < Patient {
		return Soon
	}
	return Rarely
}

// Status is the state of one path, with its next trial.
type Status struct {
	State   State
	Since   time.Time // when the path entered the state
	Next    time.Time // when the next trial is due; zero: none is scheduled
	NoLease bool      // no lease: a trial's result would mean nothing, so none starts
	Untried time.Time // when In last changed the state to Untried, because the pod file has the path as untried; zero: never
	// Hidden is set if the pod's own table may have recorded only answers of the kernel program, or none. The next trial then ignores the
	// table's record of UDP answers.
	Hidden bool
}

// row is one cell of the table: what an event does in a state.
type row struct {
	to    State // zero: the state stays
	do    Effect
	trial timing
}

// timing is what an event does to the time of the next trial.
type timing int

const (
	asBefore timing = iota
	never           // no trial is scheduled
	now             // at once
	retry           // after Retry
	later           // after Retry while the path is young, otherwise after Soon or Rarely
	watch           // if the path is young, after Retry and with Hidden, because the pod may have sent no query since; otherwise never
	noLease         // no trial starts until the agent has the lease again
	leased          // at once, if the lease was missing and a trial is scheduled
	ifDue           // start a trial now if its time has come
)

// table has a cell for every state and event. A cell that is not listed changes nothing.
var table = [states][events]row{
	Untried: {
		TrialAnswered:   {to: Waiting, trial: never},
		TrialUnanswered: {to: Bypassed, trial: later},
		TrialVoid:       {trial: retry},
		LeaseGranted:    {trial: leased},
		LeaseWithdrawn:  {trial: noLease},
		Deselected:      {to: Unselected, trial: never},
		Heartbeat:       {trial: ifDue},
	},
	Waiting: {
		FallbackVerified: {to: Steered, do: Steer, trial: watch},
		LeaseGranted:     {trial: leased},
		LeaseWithdrawn:   {trial: noLease},
		Deselected:       {to: Unselected, do: Bypass, trial: never}, // a killed agent may have written the pod's table, not its file
	},
	Steered: {
		TrialAnswered:     {trial: watch},
		TrialUnanswered:   {to: Bypassed, do: Bypass, trial: later},
		TrialVoid:         {trial: watch},
		TrialFailed:       {trial: later}, // for untried and bypassed paths, a trial is scheduled anyway
		TableBypasses:     {trial: now},
		TableKnowsNothing: {trial: now},
		HostDrops:         {to: Bypassed, do: Bypass, trial: later},
		FallbackLost:      {to: Waiting, do: Bypass, trial: never},
		LeaseGranted:      {trial: leased},
		LeaseWithdrawn:    {trial: noLease},
		Deselected:        {to: Unselected, do: Bypass, trial: never},
		Heartbeat:         {trial: ifDue},
	},
	Bypassed: {
		TrialAnswered:   {to: Waiting, trial: never},
		TrialUnanswered: {trial: later},
		TrialVoid:       {trial: later},
		HostDrops:       {do: Bypass}, // the next trial is scheduled since the one whose query was dropped
		HostDelivers:    {to: Steered, do: Steer, trial: never},
		LeaseGranted:    {trial: leased},
		LeaseWithdrawn:  {trial: noLease},
		Deselected:      {to: Unselected, trial: never},
		Heartbeat:       {trial: ifDue},
	},
	Unselected: {
		LeaseGranted:   {trial: leased},
		LeaseWithdrawn: {trial: noLease},
		Selected:       {to: Untried, trial: now},
	},
}

// In returns the status of a path whose pod file records the given state. If the remembered state differs, the file counts, because it
// records what is in force.
func (s Status) In(state State, at time.Time) Status {
	if s.State == state {
		return s
	}
	next := Status{State: state, Since: at, NoLease: s.NoLease, Untried: s.Untried}
	if state == Untried {
		next.Untried = at
	}
	if state == Steered {
		next = next.watch(at)
	}
	return next
}

// Young reports whether less than Youth has passed since Untried.
func (s Status) Young(at time.Time) bool { return at.Sub(s.Untried) < Youth }

// watch schedules the next trial of a steered path if the path is young, and otherwise none.
func (s Status) watch(at time.Time) Status {
	s.Next, s.Hidden = time.Time{}, false
	if s.Young(at) {
		s.Next, s.Hidden = at.Add(Retry), true
	}
	return s
}

// pause returns the time until the next trial: Retry for a young path, otherwise Pause.
func (s Status) pause(at time.Time) time.Duration {
	if s.Young(at) {
		return Retry
	}
	return Pause(at.Sub(s.Since))
}

// On returns the status after an event, and the effects that the caller must carry out.
func (s Status) On(e Event, at time.Time) (Status, Effect) {
	r := table[s.State][e]
	if r.to != 0 {
		s.State, s.Since = r.to, at
	}
	switch r.trial {
	case never:
		s.Next, s.Hidden = time.Time{}, false
	case watch:
		s = s.watch(at)
	case now:
		s.Next = at
	case retry:
		s.Next = at.Add(Retry)
	case later:
		s.Next = at.Add(s.pause(at))
	case noLease:
		s.NoLease = true
	case leased:
		if s.NoLease && !s.Next.IsZero() {
			s.Next = at
		}
		s.NoLease = false
	case ifDue:
		return s.start(at)
	case asBefore:
	}
	return s, r.do
}

// start returns the effect Trial if a trial is due. For a path that is not steered it also schedules the next one, in case no result is
// reported. For a steered path, each event that raises a doubt starts one trial.
func (s Status) start(at time.Time) (Status, Effect) {
	switch {
	case s.Next.IsZero() && s.State == Untried:
		s.Next = at
	case s.Next.IsZero() && s.State == Bypassed:
		s.Next = at.Add(s.pause(at))
	}
	if s.Next.IsZero() || s.NoLease || at.Before(s.Next) {
		return s, 0
	}
	s.Next = at.Add(Pause(at.Sub(s.Since)))
	if s.State == Steered {
		s.Next = time.Time{}
	}
	return s, Trial
}
