package evidence

import (
	"time"

	"github.com/neardns/neardns/agent/internal/pods/podstate"
	"github.com/neardns/neardns/pkg/steer"
)

// maxAge is how old a first dropped query may be when the second comes. The switch forgets its clients in the same time, and a resolver
// that gives up repeats a query sooner (resolv.conf(5): 5 s, at most 30 s).
const maxAge = time.Minute

// Lease is the state of a lease.
type Lease struct {
	Since   time.Time // held without a break
	Renewed time.Time // last renewed
}

// judge finds clients whose queries are dropped, and records those that the switch bypasses. It is pure: times come with the notes.
// podstate decides what happens to a client.
type judge struct {
	firstDropped map[steer.Client]time.Time // the earliest query that was dropped, of clients of clients that have one
	bypassed     map[steer.Client]bypass
}

// bypass is a client that the switch bypasses.
type bypass struct {
	podstate.Status
	last time.Time // when the switch last got a control packet
	step int       // of steer.Hold: how long the bypass lasts
	// triesItself: no netns is known to try the client's path from, so its next query after the bypass is its trial.
	triesItself bool
}

func newJudge() *judge {
	return &judge{firstDropped: map[steer.Client]time.Time{}, bypassed: map[steer.Client]bypass{}}
}

// nextTrial is when the client's path is tried next.
func (h bypass) nextTrial() time.Time {
	if h.triesItself {
		return h.last.Add(steer.Hold(h.step))
	}
	return h.Next
}

// findDropped lists the clients whose queries were dropped, by one reading of the notes that began at now: two queries, at least gap apart,
// were delivered and did not pass the host's filters, and none between them did; the lease was held since before the first; and it was
// renewed after the second, so that the prober's path was open. Of a bypassed client one query is enough: a trial. again: a client only
// waits for the next renewal, so the notes have to be read once more.
// gap must be the lease's lifetime or more: an event that closes the path for all pods ends the lease within that time.
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
			// Without a lease no query is delivered: this one came before it ended.
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

// next returns how a client whose queries were dropped is to be held from now on, as podstate decides. The agent tries the path of a known
// pod's client long before the hold ends, even if the agent is stopped or replaced meanwhile: without a trial, the pod would lose a query.
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
	h.Status, _ = h.On(podstate.HostDrops, now) // of either state: Bypass
	h.last = now
	return h
}

// noteBypass records a client that the switch bypasses now. Earlier queries do not count any more.
func (j *judge) noteBypass(c steer.Client, h bypass) {
	j.bypassed[c] = h
	delete(j.firstDropped, c)
}

// dueTrials lists the bypassed clients whose trial podstate starts now.
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

// reconcile takes over what the switch knows: clients that an earlier agent had bypassed are learned, and those that the switch cleared, or
// forgot because they sent nothing, are returned.
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
