package zonewriter

import (
	"context"
	"fmt"
	"time"

	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/fleet/zones/zone"
)

// A server says SERVFAIL for three reasons, and does not say which: it is busy for a moment (PowerDNS, while its database is locked), it
// can write nothing (its disk is full), or one message would make a set too large (BIND: max-records-per-type). Time tells the first.
// A heartbeat, the smallest message there is, tells the second. The third is believed only of a message that fails again and again while
// the same without what makes the set grow is taken.

// ailing is a server that takes nothing.
type ailing struct {
	until time.Time // nothing is sent before
	times int       // in a row
	err   error
}

// limit is how many RRs the server lets a set have, and what is guessed of it.
type limit struct {
	n     int       // 0: it is not known to have a limit
	until time.Time // perhaps it is raised then

	guess int    // what n may be; 0: there is no guess
	host  string // whose messages try it
	kept  bool   // a message that keeps within the guess was taken; now one that does not must fail
}

// judge sends again what failed while the server was busy, a host at a time where it fails as a whole. It does so only if the server takes a
// heartbeat now. The results are sendBatch's.
func (p *Publisher) judge(ctx context.Context, jobs []*job, failed error) (contended, stop bool) {
	if p.o.Heartbeat > 0 {
		err := p.update(ctx, nil, p.beatChanges(false))
		p.beatSent(err)
		switch rfc2136.KindOf(err) {
		case rfc2136.ServerFailed, rfc2136.NoAnswer, rfc2136.BadAnswer, rfc2136.Unreachable:
			wait := about(min(away<<min(p.ailing.times, 10), longAway))
			p.ailing = ailing{until: time.Now().Add(wait), times: p.ailing.times + 1, err: failed}
			return false, true
		case rfc2136.Prerequisite:
			return true, false
		}
		if !p.refresh(ctx, false) { // the next message has the new heartbeat as prerequisite
			return false, true
		}
	}
	return p.single(ctx, jobs)
}

func (p *Publisher) single(ctx context.Context, jobs []*job) (contended, stop bool) {
	err := p.post(ctx, jobs)
	switch {
	case rfc2136.KindOf(err) != rfc2136.ServerFailed:
		return p.became(ctx, jobs, err)
	case len(jobs) > 1:
		return each(jobs, func(one []*job) (bool, bool) { return p.single(ctx, one) })
	case p.suspect(jobs[0]):
		return true, false
	}
	p.refused(jobs[0], err)
	return false, false
}

// each does something with one job after another until it says stop.
func each(jobs []*job, do func(one []*job) (contended, stop bool)) (contended, stop bool) {
	for i := range jobs {
		var again bool
		if again, stop = do(jobs[i : i+1]); again {
			contended = true
		}
		if stop {
			break
		}
	}
	return contended, stop
}

// suspect considers that a message fails because it makes a set too large, and reports whether it is worth to plan again.
func (p *Publisher) suspect(j *job) bool {
	const installed = 100 // BIND since 9.18.28
	before, after := p.state.Growth(&j.Message)
	l := &p.limit
	tried := l.guess > 0 && l.host == j.Host
	switch {
	case l.n > 0 && after > l.n: // others were faster
		return true
	case tried && l.kept && after > l.guess:
		p.limit = limit{n: max(l.guess, before), until: time.Now().Add(about(p.o.Validate))}
		return true
	case l.n == 0 && before < installed && after > installed:
		l.guess = installed
	case before > 0 && !(tried && l.guess <= before):
		l.guess = before
	default:
		l.guess = 0
		return false
	}
	l.host, l.kept = j.Host, false
	return true
}

// tested notes that the server took a message of the host that a guess is tried on.
func (l *limit) tested(host string) {
	if l.guess == 0 || l.host != host {
		return
	}
	if l.kept {
		l.guess = 0 // it takes more: the server was busy
	}
	l.kept = true
}

// planned is the host's next step under what is known of limits. The mutex is held.
func (p *Publisher) planned(w zone.Writer, m zone.Memory, want zone.Publication, now time.Time) zone.Step {
	l := &p.limit
	if l.n > 0 && now.After(l.until) {
		l.n = 0
	}
	w.Limit = l.n
	if l.guess == 0 || l.kept || l.host != want.Host {
		return p.state.Plan(w, m, want)
	}
	w.Limit = l.guess
	st := p.state.Plan(w, m, want)
	switch {
	case st.Conflict == nil && !st.Message.Empty(): // on trial: nobody is told yet
		st.Notes, st.Unserved = nil, nil
	case len(st.Unserved) > 0 || st.Conflict != nil && st.Conflict.Reason == zone.RRsetFull:
		// All that keeps within it is in the zone, by a message of long ago, and the heartbeat was taken just now.
		*l = limit{n: l.guess, until: now.Add(about(p.o.Validate))}
	default: // the host is to be another one by now
		*l = limit{n: l.n, until: l.until}
		w.Limit = l.n
		return p.state.Plan(w, m, want)
	}
	return st
}

// wait reports a host that waits for a server that takes nothing. The mutex is held.
func (p *Publisher) wait(h *host) {
	p.report(h, &zone.Conflict{Reason: zone.Reason(rfc2136.ServerFailed), Message: fmt.Sprintf("%v, and to a heartbeat, too; it is tried again at %s",
		p.ailing.err, p.ailing.until.Format(time.TimeOnly))})
}
