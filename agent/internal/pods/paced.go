package pods

import (
	"net/netip"
	"slices"
	"time"

	"github.com/neardns/neardns/agent/internal/pods/adoption"
	"github.com/neardns/neardns/agent/internal/pods/podstate"
	"github.com/neardns/neardns/pkg/podfile"
)

// census is the state of an adopted pod for package adoption, by the states of its paths. started: this agent has started it.
func census(states []podstate.State, started bool) adoption.Pod {
	has := func(s podstate.State) bool { return slices.Contains(states, s) }
	switch untried := has(podstate.Untried); {
	case untried && !started:
		return adoption.Waiting
	case !started:
		return adoption.Other
	case has(podstate.Bypassed):
		return adoption.Unanswered
	case untried:
		return adoption.Started
	case has(podstate.Waiting), has(podstate.Steered):
		return adoption.Answered
	}
	return adoption.Other
}

// WaitsForAdoption reports whether an agent found the pod running, and none has tried it yet.
func WaitsForAdoption(f podfile.File) bool {
	return f.Adopted != "" && !slices.ContainsFunc(f.Decisions, func(d podfile.Decision) bool {
		s := StateOf(d)
		return s == podstate.Waiting || s == podstate.Steered || s == podstate.Bypassed
	})
}

// paceAdoption starts the next adopted pod if one may be started. It returns the pods that wait, of which no trial may run, and the time of
// the next start; zero: none by time. A pod is started only if it could be steered at once, because many pods would otherwise be steered in
// the same moment later.
func (p *Pods) paceAdoption(files []podfile.File, lease Lease, fallback func(netip.Addr) Fallback,
	now time.Time) (waiting map[key]bool, next time.Time) {
	waiting = map[key]bool{}
	started, could := map[key]bool{}, key{}
	var c adoption.Census
	for _, f := range files {
		if f.Adopted == "" {
			continue
		}
		states, ready := make([]podstate.State, 0, len(f.Decisions)), false
		for _, d := range f.Decisions {
			state := StateOf(d)
			if _, differs := p.selection(f, d); differs { // not selected any more, or not yet
				state = podstate.Unselected
			}
			states = append(states, state)
			ready = ready || state == podstate.Untried && fallback(d.Redirect.ClusterDNS).Verified &&
				leaseEvent(lease, d.Redirect.Steering, state) == podstate.LeaseGranted
		}
		k := keyOf(f)
		is := census(states, p.due.started[k])
		c[is]++
		switch {
		case is == adoption.Waiting:
			waiting[k] = true
			if could == (key{}) && ready {
				could = k
			}
		case is != adoption.Other:
			started[k] = true
		}
	}
	p.due.started = started // a pod that is selected again is started again
	start, next := p.due.adoption.Next(c, could != (key{}), now)
	if start {
		delete(waiting, could)
		started[could] = true
	}
	return waiting, next
}
