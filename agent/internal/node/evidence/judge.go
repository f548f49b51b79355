package evidence

import (
	"time"

	"github.com/neardns/neardns/pkg/steer"
)

// patience is how old a first unheard question may be when the second comes. The switch forgets who asked in the same time,
// and a client that gives up asks again sooner (resolv.conf(5): 5 s, at most 30 s).
const patience = time.Minute

// Lease is what the loop knows of a lease at one moment.
type Lease struct {
	Since  time.Time // held without a break
	Proven time.Time // last renewed
}

// judge is what is remembered between two looks. It never reads a clock and touches nothing: times come with the notes.
type judge struct {
	first map[steer.Client]time.Time // of clients in question: the earliest of the questions that were not heard
	held  map[steer.Client]hold      // suspects
}

// hold is a suspect's sentence.
type hold struct {
	since time.Time // of the first hold
	last  time.Time // of the last one
	step  int
}

func newJudge() *judge {
	return &judge{first: map[steer.Client]time.Time{}, held: map[steer.Client]hold{}}
}

// until is when the suspect is tried next.
func (h hold) until() time.Time { return h.last.Add(steer.Hold(h.step)) }

// verdict asks for a hold.
type verdict struct {
	client steer.Client
	step   int
}

// look weighs one reading of the notes that began at now. A client is held when two of its questions, at least gap apart,
// were not heard and none between them was; when the lease that they were delivered under was held since before the first;
// and when it was proven after the second, so that the way was open for the prober. Of a suspect one question is enough: its
// trial. again says that a verdict only waits for the next proof, so that the notes have to be read once more.
//
// gap must be the lease's lifetime or more: what closes the way for everybody ends the lease within that time.
func (j *judge) look(now time.Time, notes steer.Notes, gap time.Duration, lease func(steer.Client) (Lease, bool)) (verdicts []verdict, again bool) {
	for c := range j.first {
		if _, ok := notes.Asked[c]; !ok {
			delete(j.first, c)
		}
	}
	for c, age := range notes.Asked {
		asked := now.Add(-age)
		heardAge, heard := notes.Heard[c]
		if heard && heardAge <= age+notes.Slack {
			delete(j.first, c)
			continue
		}
		l, ok := lease(c)
		if !ok || asked.Before(l.Since) {
			// Nobody's questions arrive without a lease, and nobody's are delivered: this one came before it ended.
			delete(j.first, c)
			continue
		}
		if h, suspect := j.held[c]; suspect {
			if asked.After(h.last) {
				verdicts = append(verdicts, verdict{c, min(h.step+1, steer.HoldSteps-1)})
			}
			continue
		}
		first, known := j.first[c]
		if !known || asked.Sub(first) > patience || first.Before(l.Since) || heard && !now.Add(-heardAge).Before(first) {
			j.first[c] = asked
			continue
		}
		if asked.Sub(first) < gap {
			continue
		}
		if !l.Proven.After(asked) {
			again = true
			continue
		}
		verdicts = append(verdicts, verdict{c, 0})
	}
	return verdicts, again
}

// hold remembers a verdict that was carried out at the given time. What was asked before is behind it.
func (j *judge) hold(v verdict, at time.Time) {
	h, ok := j.held[v.client]
	if !ok {
		h.since = at
	}
	h.last, h.step = at, v.step
	j.held[v.client] = h
	delete(j.first, v.client)
}

// reconcile takes over what the switch says: suspects of an earlier agent are learned, with the shortest step, and those that
// the switch cleared, or forgot since they asked nothing, are returned.
func (j *judge) reconcile(now time.Time, suspects []steer.Suspect) (ended []steer.Client) {
	present := make(map[steer.Client]bool, len(suspects))
	for _, s := range suspects {
		present[s.Client] = true
		if _, ok := j.held[s.Client]; !ok {
			j.held[s.Client] = hold{since: now, last: now}
		}
	}
	for c := range j.held {
		if !present[c] {
			ended = append(ended, c)
			delete(j.held, c)
		}
	}
	return ended
}
