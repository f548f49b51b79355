package pods

import (
	"net/netip"
	"slices"
	"time"

	"github.com/neardns/neardns/agent/internal/pods/adoption"
	"github.com/neardns/neardns/agent/internal/pods/podstate"
	"github.com/neardns/neardns/pkg/podfile"
)

// census classifies an adopted pod for package adoption by the states of its paths, one for each cluster DNS address. started is true if
// this process has allowed the pod's first trial.
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

// WaitsForAdoption reports whether the pod ran before the plugin was installed, and no path of it is steered or has a trial's result.
func WaitsForAdoption(f podfile.File) bool {
	return f.Adopted != "" && !slices.ContainsFunc(f.Decisions, func(d podfile.Decision) bool {
		s := StateOf(d)
		return s == podstate.Waiting || s == podstate.Steered || s == podstate.Bypassed
	})
}

// paceAdoption allows the first trial of the next adopted pod if package adoption does. It returns the pods that still wait, for which no
// trial may run, and when the next pod may start; zero if no time is known. It starts a pod only if the pod could be steered at once.
// Otherwise many started pods would all be steered at the moment when the obstacle is gone.
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
			if _, differs := p.selection(f, d); differs { // Excludes decides otherwise than the file, which Reconcile has yet to change
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
	p.due.started = started // without pods that are gone or not selected: if such a pod is selected again, it waits again
	start, next := p.due.adoption.Next(c, could != (key{}), now)
	if start {
		delete(waiting, could)
		started[could] = true
	}
	return waiting, next
}
