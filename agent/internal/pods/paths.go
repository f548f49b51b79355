package pods

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/neardns/neardns/agent/internal/pods/podstate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
)

// key identifies one network interface of a pod, which has one pod file. Other comments call it an attachment (of the pod to a network).
type key struct{ containerID, ifName string }

func keyOf(f podfile.File) key { return key{f.ContainerID, f.IfName} }

// path is one redirect of an attachment: the pod's queries to one cluster DNS address. The state table in podstate decides who answers
// them.
type path struct {
	key
	redirect steer.Redirect
}

// StateOf returns the podstate state that a pod's file records for a path; zero for a path that podstate does not decide.
func StateOf(d podfile.Decision) podstate.State {
	switch {
	case d.Excluded:
		return podstate.Unselected
	case d.State == podfile.Steered:
		return podstate.Steered
	case d.State != podfile.Pending:
		return 0
	case len(d.Unanswered) > 0:
		return podstate.Bypassed
	case d.Untried:
		return podstate.Untried
	}
	return podstate.Waiting
}

// report passes an event about a path to podstate's state table, and returns the path's new status and the effects that the caller must
// carry out.
func (p *Pods) report(f podfile.File, d podfile.Decision, e podstate.Event, now time.Time) (podstate.Status, podstate.Effect) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := path{keyOf(f), d.Redirect}
	s, do := p.paths[at].In(StateOf(d), now).On(e, now)
	p.paths[at] = s
	return s, do
}

// selection returns the event to report if Excludes now selects the pod and the path's state is Unselected, or the other way round.
// differs is false if there is nothing to report.
func (p *Pods) selection(f podfile.File, d podfile.Decision) (s signal, differs bool) {
	state := StateOf(d)
	if state == 0 || p.Excludes == nil {
		return s, false
	}
	switch why := p.Excludes(f); {
	case why != "" && state != podstate.Unselected:
		return signal{event: podstate.Deselected, reason: why}, true
	case why == "" && state == podstate.Unselected:
		return signal{event: podstate.Selected, reason: "its path to the agent is not tried yet"}, true
	}
	return s, false
}

// reportSteered reports the event e to podstate for each steered path of a pod file.
func (p *Pods) reportSteered(f podfile.File, e podstate.Event) {
	for _, d := range f.Decisions {
		if d.State == podfile.Steered {
			p.report(f, d, e, time.Now())
		}
	}
}

// reportTables reports to podstate the paths that a pod's own table bypasses, because the agent's answers do not arrive. It reads the pod
// tables at most once per podstate.Soon, because that enters each pod's netns.
func (p *Pods) reportTables(files []podfile.File, now time.Time) error {
	if !p.backend.Caps().Evidence || now.Sub(p.due.tablesRead) < podstate.Soon {
		return p.due.tablesErr
	}
	p.due.tablesRead = now
	var errs []error
	for box := range sandboxes(files) {
		bypassed, _, err := p.bypassedBy(&box)
		for _, f := range box.files {
			for _, d := range f.Decisions {
				bypasses := func(w steer.PodWay) bool { return w.ClusterDNS == d.Redirect.ClusterDNS }
				if d.State == podfile.Steered && slices.ContainsFunc(bypassed, bypasses) {
					p.report(f, d, podstate.TableBypasses, now)
				}
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", Name(box.files[0]), err))
		}
		box.close()
	}
	p.due.tablesErr = errors.Join(errs...)
	return p.due.tablesErr
}

// bypassedBy returns the paths that a sandbox's own pod table bypasses now, because its queries got no answer. known is false if the back
// end's pod tables keep no record of that, if the pod should have no table, or if its netns cannot be opened.
func (p *Pods) bypassedBy(box *sandbox) (ways []steer.PodWay, known bool, err error) {
	want := podfile.Table(box.files...)
	if box.ns == nil || len(want.Redirects) == 0 {
		return nil, false, nil
	}
	table, err := p.backend.Open(int(box.ns.Fd()))
	if err != nil {
		return nil, false, err
	}
	defer table.Close() //nolint:errcheck // only read
	w, known := table.(steer.BypassReader)
	if known {
		ways, err = w.Unanswered(want)
	}
	return ways, known, err
}

// signal is an event about a path, with its details for the pod's file and the log.
type signal struct {
	event     podstate.Event
	reason    string
	protocols []string // protocols over which a trial's queries were not answered
}

// decide calls signalOf for each path of a sandbox, reports the signals to podstate, and carries out its decisions, except that it steers
// no path: first in the pod table, then in the pod files. If the agent ends between the two, the files still record the old rules, so a
// later agent knows of them. changed is true if an answered trial changed a path's state, so that the pod may be steered now.
func (p *Pods) decide(box *sandbox, signalOf func(podfile.File, podfile.Decision) (signal, bool)) (changed bool, err error) {
	files, effects := slices.Clone(box.files), podstate.Effect(0)
	var logs []func()
	for i := range files {
		f := &files[i]
		f.Decisions = slices.Clone(f.Decisions)
		for j := range f.Decisions {
			d := &f.Decisions[j]
			s, ok := signalOf(*f, *d)
			if !ok {
				continue
			}
			was := StateOf(*d)
			status, do := p.report(*f, *d, s.event, time.Now())
			if status.State == was {
				continue
			}
			effects |= do
			changed = changed || s.event == podstate.TrialAnswered
			*d = podfile.Decision{Redirect: d.Redirect, Local: d.Local, State: podfile.Pending, Reason: s.reason, Unanswered: s.protocols,
				Untried: status.State == podstate.Untried}
			if status.State == podstate.Unselected {
				d.State, d.Excluded = podfile.LeftAlone, true
			}
			redirect := d.Redirect
			logs = append(logs, func() { p.logState(*f, redirect, was, s) })
		}
	}
	if len(logs) == 0 {
		return false, nil
	}
	if effects&podstate.Bypass != 0 && box.ns != nil {
		if p.busy.Load() {
			return false, fmt.Errorf("bypass it: %w", iptables.ErrLocked)
		}
		if err := p.shrink(box, &sandbox{files: files, ns: box.ns}); err != nil {
			return false, fmt.Errorf("bypass it: %w", err)
		}
		p.forgetEntries(sandbox{files: files, ns: box.ns}, func(d podfile.Decision) bool { return StateOf(d) == podstate.Bypassed })
	}
	for i, f := range files {
		if err := p.writeDecisions(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		box.files[i] = f
	}
	for _, log := range logs {
		log()
	}
	return changed, nil
}

// leaveTime is how long Reconcile leaves the table of a pod that is no longer steered in place; the table then only rewrites answers that
// are still to come. It is longer than the 5 s for which a resolver waits for an answer (resolv.conf(5)), and as long as the server keeps
// an idle connection.
const leaveTime = 10 * time.Second

// shrink rewrites a sandbox's table so that it has only the redirects that are still steered. If there are none, it removes the table: at
// once, or after leaveTime if the back end supports that.
func (p *Pods) shrink(was, box *sandbox) error {
	if len(podfile.Table(box.files...).Redirects) > 0 {
		return p.apply(box)
	}
	leaving := podfile.Table(was.files...)
	if leaving.Leaving = p.backend.Caps().Leaves; !leaving.Leaving || len(leaving.Redirects) == 0 {
		return p.remove(box.ns)
	}
	table, err := p.backend.Open(int(box.ns.Fd()))
	if err != nil {
		return err
	}
	defer table.Close()
	if _, err := table.Repair(leaving); err != nil {
		return err
	}
	p.leaving.Store(box.files[0].NetNSInode, time.Now().Add(leaveTime))
	return removeOf(p.backend.Other(), box.ns)
}

// endLeaving removes a pod table that is kept only for answers that are still to come (leaveTime), because the table would rewrite the
// answer to a trial.
func (p *Pods) endLeaving(f podfile.File) error {
	if _, leaves := p.leaving.Load(f.NetNSInode); !leaves {
		return nil
	}
	return p.inSandbox(f, func(box *sandbox) error {
		p.leaving.Delete(f.NetNSInode)
		if len(podfile.Table(box.files...).Redirects) > 0 {
			return nil
		}
		return removeOf(p.backend, box.ns)
	})
}

// logState logs that the state of a pod's path to a cluster DNS address changed.
func (p *Pods) logState(f podfile.File, r steer.Redirect, was podstate.State, s signal) {
	about := []any{"pod", f.PodNamespace + "/" + f.PodName, "container_id", f.ContainerID, "cluster_dns", r.ClusterDNS}
	switch {
	case s.event == podstate.Selected:
		p.log.Info("the configuration now selects the pod; kube-dns answers it until a test query from its netns is answered", about...)
	case s.event == podstate.Deselected:
		p.log.Info("pod not selected for steering; kube-dns answers it", append(about, "reason", s.reason)...)
	case s.event == podstate.TrialAnswered:
		p.log.Info("test queries from the pod's netns answered; it is steered once its fallback is verified", about...)
	case was == podstate.Untried:
		p.log.Warn("pod's queries to cluster_dns not steered, kube-dns answers them: its test query got no answer",
			append(about, "reason", s.reason)...)
	default:
		p.log.Warn("pod's queries to cluster_dns no longer steered; kube-dns answers them from now on", append(about, "reason", s.reason)...)
	}
}
