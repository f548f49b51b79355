package evidence

import (
	"time"

	"github.com/neardns/neardns/agent/internal/pods/podstate"
	"github.com/neardns/neardns/pkg/steer"
)

// maxAge is how long after a client's first dropped query a second one still counts as evidence together with it. The switch forgets
// clients after the same time, and a resolver repeats a query sooner (resolv.conf(5): after 5 s, at most 30 s).
const maxAge = time.Minute

// Lease is the state of a lease.
type Lease struct {
	Since   time.Time // since when the lease has been held without a break
	Renewed time.Time // when the lease was last renewed
}

// judge finds clients whose queries are dropped, and records those that the switch bypasses. It reads no clock: times are arguments.
// Package podstate decides what happens to a client.
type judge struct {
	firstDropped map[steer.Client]time.Time // clients with a dropped query, each with the time of the earliest one that still counts
	bypassed     map[steer.Client]bypass
}

// bypass is the state of a client that the switch bypasses.
type bypass struct {
	podstate.Status
	last time.Time // when this agent last made the switch bypass the client, or first found it bypassed
	step int       // the argument of steer.Hold, which returns the length of the bypass
	// triesItself is set if the agent knows no netns to run a trial from. The client's next query after the bypass then serves as the
	// trial.
	triesItself bool
}

func newJudge() *judge {
	return &judge{firstDropped: map[steer.Client]time.Time{}, bypassed: map[steer.Client]bypass{}}
}

// nextTrial returns the time of the next trial of the client's path.
func (h bypass) nextTrial() time.Time {
	if h.triesItself {
		return h.last.Add(steer.Hold(h.step))
	}
	return h.Next
}

// findDropped returns the clients whose queries were dropped, by one reading of the kernel's records that began at now. A client counts
// if the switch delivered two of its queries, at least gap and at most maxAge apart, and the host's filters let neither, nor any between
// them, pass. The lease must have been held since before the first, and renewed after the second, which shows that the prober's path was
// open. For a client that is bypassed, one query is enough: it was the client's trial. again is set if only the lease's next renewal is
// missing, so the records must be read again.
//
// gap must be at least the lease's lifetime: an event that closes the path for all pods ends the lease within that time.
func (j *judge) findDropped(now time.Time, notes steer.Notes, gap time.Duration, lease func(steer.Client) (Lease, bool)) (
	dropped []steer.Client, again bool,
) {
	for c := range j.firstDropped {
		if _, ok := notes.Delivered[c]; !ok {
			delete(j.firstDropped, c)
		}
	}
	for c, age := range notes.Delivered {
		asked := now.Add(-age)
		heardAge, heard := notes.Arrived[c]
		if heard && heardAge <= age+notes.Slack {
			delete(j.firstDropped, c)
			continue
		}
		l, ok := lease(c)
		if !ok || asked.Before(l.Since) {
			// The switch delivers a query only under a lease, so this one was delivered under an earlier lease, about which nothing is known.
			delete(j.firstDropped, c)
			continue
		}
		if h, bypassed := j.bypassed[c]; bypassed {
			if asked.After(h.last) {
				dropped = append(dropped, c)
			}
			continue
		}
		first, known := j.firstDropped[c]
		if !known || asked.Sub(first) > maxAge || first.Before(l.Since) || heard && !now.Add(-heardAge).Before(first) {
			j.firstDropped[c] = asked
			continue
		}
		if asked.Sub(first) < gap {
			continue
		}
		if !l.Renewed.After(asked) {
			again = true
			continue
		}
		dropped = append(dropped, c)
	}
	return dropped, again
}

// next returns the bypass of a client whose queries were dropped, as podstate decides. For a client of a known pod the bypass is much
// longer than the time until the next trial, even across a restart of the agent. If it ended without a trial, the pod would lose a query.
func (j *judge) next(c steer.Client, knownPod bool, now time.Time) bypass {
	h, known := j.bypassed[c]
	switch {
	case !known:
		h = bypass{Status: h.In(podstate.Steered, now), triesItself: !knownPod}
	case h.triesItself:
		h.step = min(h.step+1, steer.HoldSteps-1)
	}
	if !h.triesItself {
		h.step = steer.HoldSteps - 2
	}
	h.Status, _ = h.On(podstate.HostDrops, now) // in both states, Steered and Bypassed, this event bypasses the client
	h.last = now
	return h
}

// noteBypass records that the host's rules now send a client's queries to kube-dns, and forgets when its queries were first dropped,
// because that was before the bypass.
func (j *judge) noteBypass(c steer.Client, h bypass) {
	j.bypassed[c] = h
	delete(j.firstDropped, c)
}

// dueTrials returns the bypassed clients for which the agent must run a pod trial now, as podstate decides.
func (j *judge) dueTrials(now time.Time, lease func(steer.Client) (Lease, bool)) (due []steer.Client) {
	for c, h := range j.bypassed {
		granted := podstate.LeaseWithdrawn
		if _, ok := lease(c); ok {
			granted = podstate.LeaseGranted
		}
		var do podstate.Effect
		h.Status, _ = h.On(granted, now)
		h.Status, do = h.On(podstate.Heartbeat, now)
		if j.bypassed[c] = h; do&podstate.Trial != 0 && !h.triesItself {
			due = append(due, c)
		}
	}
	return due
}

// reconcile brings the records of bypassed clients in line with the switch. It adds clients that an earlier agent had bypassed, and
// removes and returns those that the switch no longer bypasses: a query arrived, the client sent none, or the host table was rebuilt.
func (j *judge) reconcile(now time.Time, suspects []steer.Suspect) (ended []steer.Client) {
	present := make(map[steer.Client]bool, len(suspects))
	for _, s := range suspects {
		present[s.Client] = true
		if _, ok := j.bypassed[s.Client]; !ok {
			j.bypassed[s.Client] = bypass{Status: podstate.Status{}.In(podstate.Bypassed, now), last: now}
		}
	}
	for c, h := range j.bypassed {
		if _, do := h.On(podstate.HostDelivers, now); !present[c] && do&podstate.Steer != 0 {
			ended = append(ended, c)
			delete(j.bypassed, c)
		}
	}
	return ended
}
