// Package podstate decides who answers a pod's DNS queries, the agent or kube-dns, and whether the kernel program may answer its hits.
//
// One table maps each state and event to the next state and to what is to be done. It reads no clock and touches nothing: callers report
// what they see as events, with their time, and carry out the effects. No other package decides about a pod. A path whose trials are
// answered is steered again at most Soon after it works again, or Rarely if it failed for longer than Patient. A new path is tried every
// Retry while it is young, so that a policy which comes just after the pod costs it little.
//
// On failure: a caller that cannot carry out an effect passes the state that is in force with the next event.
package podstate

import "time"

// State is that of a path: whether the cache or kube-dns answers a pod's queries to one cluster DNS address.
type State int

// The states. In a row of the table, zero as the next state means no change.
const (
	Untried    State = iota + 1 // pending: kube-dns answers until a trial from the pod's netns is answered
	Waiting                     // pending: kube-dns answers until the fallback is verified
	Steered                     // the agent answers while its lease stands
	Bypassed                    // kube-dns answers until a trial is answered
	Unselected                  // kube-dns answers, and no trial runs, until steer.mode selects the pod
	states
)

// Event is one signal about a path.
type Event int

// The events.
const (
	TrialAnswered     Event = iota // queries from the pod's netns reached the agent and were answered, over UDP and TCP
	TrialUnanswered                // one was not, under a lease that stood before and was renewed after it
	TrialVoid                      // a trial that shows nothing: the lease did not stand throughout, or kube-dns answered
	TrialFailed                    // the agent could not run a trial, or not carry out its result
	TableBypasses                  // the pod's own table sends queries to kube-dns because answers do not come
	TableKnowsNothing              // a periodic look at a pod whose table keeps no evidence (iptables)
	HostDrops                      // the switch delivered queries of the pod, and a filter of the host dropped them
	HostDelivers                   // a query of a bypassed client passed the host's filters
	FallbackVerified               // kube-dns answers what the switch does not deliver
	FallbackLost                   // it does not any more, for good
	LeaseGranted                   // the agent holds the path's leases
	LeaseWithdrawn                 // it does not
	Selected                       // steer.mode selects the pod
	Deselected                     // it does not, or not any more
	Heartbeat                      // the agent runs
	events
)

// Effect is what is to be done after an event.
type Effect int

// The effects, as bits.
const (
	Steer      Effect = 1 << iota // put the path into the pod's table
	Bypass                        // take it out, or have the switch bypass the client
	Trial                         // start a trial now, and report what came of it
	OffloadOn                     // the kernel program may answer the pod's hits
	OffloadOff                    // it must not
	Log                           // log the change, once
)

// The pauses between two trials.
const (
	Retry   = 500 * time.Millisecond // of a path that has had no result yet, and of a young one
	Soon    = 10 * time.Second       // of a bypassed one
	Rarely  = time.Minute            // of one that is bypassed for longer than Patient, so that a lasting policy denies little
	Patient = 10 * time.Minute
)

// Youth is how long a path is young, from when it is first seen untried. Network policies follow a pod's start by some seconds.
const Youth = 10 * time.Second

// Pause is the time to the next trial of a path that has been bypassed for so long.
func Pause(bypassed time.Duration) time.Duration {
	if bypassed < Patient {
		return Soon
	}
	return Rarely
}

// Status is what the table remembers of one path.
type Status struct {
	State     State
	Offloaded bool
	Since     time.Time // of the state
	Next      time.Time // of the next trial; zero: none is scheduled
	NoLease   bool      // no trial would show anything
	Untried   time.Time // when the path was first seen untried; zero: before this agent
	// Hidden: the pod's own table may have seen only the kernel program's answers, or none, so the next trial does not count what it saw.
	Hidden bool
}

// row is one cell of the table.
type row struct {
	to    State // zero: the state stays
	do    Effect
	trial timing
}

// timing is what an event does to the next trial.
type timing int

const (
	asBefore timing = iota
	never
	now
	retry
	later   // after the pause
	watch   // after Retry while the path is young, never else; hidden, because the pod may have sent no query since
	noLease // none until the lease is back
	leased  // at once if one was kept waiting for the lease
	ifDue   // start it if its time has come
)

// table has a cell for every state and event. A cell that is not written changes nothing.
var table = [states][events]row{
	Untried: {
		TrialAnswered:   {to: Waiting, do: Log, trial: never},
		TrialUnanswered: {to: Bypassed, do: Log, trial: later},
		TrialVoid:       {trial: retry},
		LeaseGranted:    {trial: leased},
		LeaseWithdrawn:  {trial: noLease},
		Deselected:      {to: Unselected, do: Log, trial: never},
		Heartbeat:       {trial: ifDue},
	},
	Waiting: {
		FallbackVerified: {to: Steered, do: Steer | OffloadOn | Log, trial: watch},
		LeaseGranted:     {trial: leased},
		LeaseWithdrawn:   {trial: noLease},
		Deselected:       {to: Unselected, do: Bypass | Log, trial: never}, // its table may be there, and the file not be written yet
	},
	Steered: {
		TrialAnswered:     {trial: watch},
		TrialUnanswered:   {to: Bypassed, do: Bypass | OffloadOff | Log, trial: later},
		TrialVoid:         {trial: watch},
		TrialFailed:       {trial: later}, // the other states have one scheduled
		TableBypasses:     {trial: now},
		TableKnowsNothing: {trial: now},
		HostDrops:         {to: Bypassed, do: Bypass | OffloadOff | Log, trial: later},
		FallbackLost:      {to: Waiting, do: Bypass | OffloadOff | Log, trial: never},
		LeaseGranted:      {trial: leased},
		LeaseWithdrawn:    {trial: noLease},
		Deselected:        {to: Unselected, do: Bypass | OffloadOff | Log, trial: never},
		Heartbeat:         {trial: ifDue},
	},
	Bypassed: {
		TrialAnswered:   {to: Waiting, do: Log, trial: never},
		TrialUnanswered: {trial: later},
		TrialVoid:       {trial: later},
		HostDrops:       {do: Bypass, trial: later},
		HostDelivers:    {to: Steered, do: Steer | OffloadOn | Log, trial: never},
		LeaseGranted:    {trial: leased},
		LeaseWithdrawn:  {trial: noLease},
		Deselected:      {to: Unselected, do: Log, trial: never},
		Heartbeat:       {trial: ifDue},
	},
	Unselected: {
		LeaseGranted:   {trial: leased},
		LeaseWithdrawn: {trial: noLease},
		Selected:       {to: Untried, do: Log, trial: now},
	},
}

// In is the status of a path that is in a state now, whatever was remembered: the pod's file is what is in force.
func (s Status) In(state State, at time.Time) Status {
	if s.State == state {
		return s
	}
	next := Status{State: state, Offloaded: state == Steered, Since: at, NoLease: s.NoLease, Untried: s.Untried}
	if state == Untried {
		next.Untried = at
	}
	if state == Steered {
		next = next.watch(at)
	}
	return next
}

// Young reports whether the path is young.
func (s Status) Young(at time.Time) bool { return at.Sub(s.Untried) < Youth }

// watch schedules a trial of a steered path while it is young, and none later.
func (s Status) watch(at time.Time) Status {
	s.Next, s.Hidden = time.Time{}, false
	if s.Young(at) {
		s.Next, s.Hidden = at.Add(Retry), true
	}
	return s
}

// pause is the time to the next trial of a path that is not steered.
func (s Status) pause(at time.Time) time.Duration {
	if s.Young(at) {
		return Retry
	}
	return Pause(at.Sub(s.Since))
}

// On returns the status after an event, and what is to be done.
func (s Status) On(e Event, at time.Time) (Status, Effect) {
	r := table[s.State][e]
	if r.to != 0 {
		s.State, s.Since = r.to, at
	}
	s.Offloaded = s.Offloaded && r.do&OffloadOff == 0 || r.do&OffloadOn != 0
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

// start starts the trial if it is due. If no result is reported, it is repeated after the pause. For a steered path, each
// suspicion starts one.
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
