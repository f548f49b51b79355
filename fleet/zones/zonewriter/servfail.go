package zonewriter

import (
	"context"
	"fmt"
	"time"

	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/fleet/zones/zone"
)

// A server answers SERVFAIL for three reasons that look the same: it is busy for a moment (PowerDNS, while its database is locked), it
// cannot write at all (its disk is full), or the message would make an RRset larger than its limit (BIND: max-records-per-type). A
// retry shows the first. A heartbeat, which is the smallest message, shows the second. The third is assumed if a message that adds
// addresses keeps failing. The host's next messages test this: first within the assumed limit, then beyond it.

// ailing is the backoff from a server that does not accept even a heartbeat.
type ailing struct {
	until time.Time // send neither hosts nor heartbeats before this time
	times int       // number of failures in a row
	err   error
}

// limit is the maximum number of RRs in an RRset on this server, known or only assumed.
type limit struct {
	n     int       // known limit; 0: none is known
	until time.Time // when to try more RRs again, because the server's limit may have been raised

	guess int    // assumed limit, which is being tested; 0: none
	host  string // the host whose messages test the assumption
	// the server has accepted a message within the assumed limit; if a message beyond that limit then fails, the assumption is right
	kept bool
}

// judge decides what to do after too many SERVFAIL answers. If heartbeats are on, it first sends one. If that also gets SERVFAIL, or no
// usable answer, hosts and heartbeats pause. Otherwise single sends the failed jobs again, unless the zone must be read or planned again
// first. contended and stop have the meaning that they have for sendBatch.
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
		if !p.refresh(ctx, false) { // the next message has this heartbeat as a prerequisite, so read the zone first
			return false, true
		}
	}
	return p.single(ctx, jobs)
}

// single sends the jobs in one message and, if the server answers SERVFAIL, each host in a message of its own. If a single host fails,
// single assumes a limit on RRsets or reports that the server refused the host.
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

// each calls do for one job after the other, until do returns stop.
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

// suspect decides whether a message may have failed because it makes an RRset too large. If so, it returns true: the host must be planned
// again, within the limit that is known, or that suspect now assumes or has confirmed.
func (p *Publisher) suspect(j *job) bool {
	const installed = 100 // the default of max-records-per-type in BIND since 9.18.28
	before, after := p.state.Growth(&j.Message)
	l := &p.limit
	tried := l.guess > 0 && l.host == j.Host
	switch {
	case l.n > 0 && after > l.n: // other clusters have added records since the limit became known
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

// tested records that the server accepted a message of a host. It matters only for the host that tests the assumed limit.
func (l *limit) tested(host string) {
	if l.guess == 0 || l.host != host {
		return
	}
	if l.kept {
		l.guess = 0 // the server accepts more than the assumed limit, so it was only busy
	}
	l.kept = true
}

// planned plans a host's next step within the known limit or, if the host is to test the assumed one, within that. The mutex is held.
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
	case st.Conflict == nil && !st.Message.Empty(): // do not report the assumed limit before a message has tested it
		st.Notes, st.Unserved = nil, nil
	case len(st.Unserved) > 0 || st.Conflict != nil && st.Conflict.Reason == zone.RRsetFull:
		// The zone already has all of the host's records that fit within the assumed limit, so the message that failed went beyond it. If
		// heartbeats are on, the server accepted one between the failures, so it can write. So the assumption counts as right.
		*l = limit{n: l.guess, until: now.Add(about(p.o.Validate))}
	default: // nothing is left that could test the assumption, for example because the publication has changed: drop it
		*l = limit{n: l.n, until: l.until}
		w.Limit = l.n
		return p.state.Plan(w, m, want)
	}
	return st
}

// wait reports that a host waits because the server did not accept even a heartbeat. The mutex is held.
func (p *Publisher) wait(h *host) {
	p.report(h, &zone.Conflict{Reason: zone.Reason(rfc2136.ServerFailed), Message: fmt.Sprintf(
		"%v, and a heartbeat failed, too; next try at %s", p.ailing.err, p.ailing.until.Format(time.TimeOnly))})
}
