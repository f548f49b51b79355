package zonewriter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/tick"
)

const (
	tries     = 8                      // maximum number of tries in a row; if prerequisites then still are not met, the host waits for pause
	firstWait = 5 * time.Millisecond   // minimum wait between two tries; a random part is added, whose maximum doubles with each try
	lastWait  = 250 * time.Millisecond // maximum wait between two tries
	pause     = 5 * time.Second        // wait of a host after tries or inARow; for failures in a row it doubles, up to Validate
	away      = time.Second            // wait if the primary cannot be read, or accepts no message; doubles up to longAway
	longest   = 2 * time.Minute        // time limit of a read, as of an edge's; a slower transfer is a failed one
	longAway  = 4 * time.Second        // so short that a returned primary is noticed within 5 s, and written to within 10 s
	inARow    = 8                      // number of messages for one host without a pause, if its change needs several
	passing   = 6                      // number of SERVFAIL answers in a row that are taken for a server that is only busy
	perBatch  = 25                     // maximum number of hosts in one message
	share     = 20                     // interval of polls in times of a read, if the primary sends the whole zone for each change; see rest
	longPoll  = 30 * time.Second       // maximum interval of polls that share makes rarer
	batchSize = 48 << 10               // maximum bytes, before compression, of the hosts' records in a message with several hosts
)

// Run keeps this cluster's records in the zone as wanted until ctx ends. The records stay in the zone.
func (p *Publisher) Run(ctx context.Context) {
	defer p.o.Metrics.ended(p.o.Zone)
	for ctx.Err() == nil {
		next := p.round(ctx)
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-p.wake:
		}
		timer.Stop()
	}
}

// round does everything that is due, and returns when to call it again at the latest.
func (p *Publisher) round(ctx context.Context) time.Time {
	now := time.Now()
	if p.failures > 0 && now.Before(p.next.poll) {
		return p.next.poll // the zone could not be read: wait for the next poll, even if there are new changes
	}
	if p.state == nil || !now.Before(p.next.poll) || !now.Before(p.next.whole) {
		if !p.refresh(ctx, p.state != nil) {
			return p.next.poll
		}
	}
	for try := 0; ctx.Err() == nil; try++ {
		steps := p.plan(try)
		if len(steps) == 0 && !p.beatDue() {
			p.removeDead(ctx)
			break
		}
		busy := p.busy
		contended := p.send(ctx, steps, try >= tries/2)
		// Wait, so that the next read has what the other writers changed, or so that the server is no longer busy.
		if contended {
			tick.Pause(ctx, jitter(max(try, p.busy)))
		}
		look := func() bool { return p.refresh(ctx, false) }
		if !look() || !p.readBack(ctx, steps, look) {
			break
		}
		p.verify(steps)
		if !contended {
			try = -1 // nothing was contended: count the tries from 0
			continue
		}
		if slices.ContainsFunc(steps, func(j *job) bool { return j.taken }) {
			try = 0
		}
		if p.busy > busy { // do not count this try: the server was busy
			try--
		}
		if try+1 >= tries {
			p.contended(steps)
			break
		}
		if try == tries/2 {
			p.next.whole = time.Time{} // the transferred changes may have missed something: read the whole zone
		}
		reason := rfc2136.Prerequisite
		if p.busy > busy {
			reason = rfc2136.ServerFailed
		}
		p.o.Metrics.retry(p.o.Zone, string(reason))
	}
	return p.wakeAt()
}

// jitter returns how long to wait before a retry. It is random, so that two writers do not keep colliding.
func jitter(try int) time.Duration {
	return firstWait + time.Duration(rand.Int64N(int64(min(firstWait<<try, lastWait-firstWait)))) //nolint:gosec // jitter needs no secrecy
}

// refresh reads the zone and returns false if that failed. If serialFirst is set, and the whole zone need not be read, it first queries the
// serial, which saves the transfer if nothing has changed.
func (p *Publisher) refresh(ctx context.Context, serialFirst bool) bool {
	whole := p.state == nil || !time.Now().Before(p.next.whole)
	state, err := p.read(ctx, whole, serialFirst)
	// BIND answers SERVFAIL if more than ten transfers run at once, so try again.
	for try := 0; rfc2136.KindOf(err) == rfc2136.ServerFailed && try < tries; try++ {
		p.o.Metrics.retry(p.o.Zone, string(rfc2136.ServerFailed))
		tick.Pause(ctx, jitter(try))
		state, err = p.read(ctx, whole, serialFirst)
	}
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		p.failed(err)
		return false
	}
	p.failures = 0
	now := time.Now()
	p.next.poll = now.Add(about(p.rest()))
	if whole {
		p.next.whole = now.Add(about(p.o.Validate))
	}
	p.watch.Pace = 2 * p.rest() // twice, to allow for jitter and for the time that reading takes
	p.watch.Observe(state, now)
	p.beat.observe(state, p.o.Identity)
	if p.late() > zone.RemoveAfter-2 {
		p.excused = now.Add(p.o.Heartbeat)
	}
	p.state, p.beat.written = state, nil
	z := ZoneStatus{State: state, Read: now, Silent: map[string]time.Duration{}, Dead: p.watch.Dead(zone.ReportAfter)}
	for cluster := range state.Beats {
		z.Silent[cluster], _, _ = p.watch.Silent(cluster)
	}
	p.o.Metrics.read(p.o.Zone, z)
	p.mu.Lock()
	p.zone = z
	p.mu.Unlock()
	return true
}

// rest returns the time between two polls, before jitter. A server without incremental transfers (PowerDNS) sends the whole zone to each
// reader after each change. If many clusters read the zone often, the server would have no time for their updates. So polls become rarer
// if such reads take long.
func (p *Publisher) rest() time.Duration {
	most := longPoll
	if p.o.Heartbeat > 0 {
		most = min(most, p.o.Heartbeat/3)
	}
	return max(p.o.Poll, min(share*p.cost, most))
}

// read reads the zone: completely if whole is set or the changes alone are not enough, else only its changes. If serialFirst is set and
// whole is not, it first queries the serial and the claim that sameHistory compares, and reads nothing more if both are unchanged.
func (p *Publisher) read(ctx context.Context, whole, serialFirst bool) (*zone.State, error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	if !whole && serialFirst {
		serial, err := p.client.Serial(ctx)
		if err != nil {
			return nil, err
		}
		same, err := p.sameHistory(ctx)
		switch {
		case err != nil:
			return nil, err
		case same && serial == p.state.Serial:
			return p.state, nil
		}
		whole = !same || !rfc2136.Newer(serial, p.state.Serial)
	}
	// A zone can become too large by many small changes. Once the records of the last whole transfer, together with those read since, exceed
	// the limit, transfer the whole zone, which checks the size.
	if !whole && !p.seen.over(p.o.Records) {
		begun := time.Now()
		t, err := p.client.IXFR(ctx, p.state.Serial)
		if err != nil {
			return nil, err
		}
		p.seen.add(t)
		state, err := next(p.state, t)
		if p.cost = 0; t.Full != nil {
			p.cost = time.Since(begun)
		}
		if err == nil {
			return state, nil
		}
		p.o.Log.Info("the answer to an incremental transfer cannot be used; transferring the whole zone", "err", err)
	}
	t, err := p.client.AXFR(ctx)
	if err != nil {
		return nil, err
	}
	p.seen.add(t)
	return zone.Parse(p.o.Zone, t.Full)
}

// mostRecords is the default of Options.Records, the same as that of an edge. A zone of this size needs 35 MiB of memory, and 70 MiB while
// it is read again.
const mostRecords = 100_000

// size is how many records of a zone were read, and their bytes with names uncompressed.
type size struct{ records, octets int }

func (s *size) add(t *rfc2136.Transfer) {
	if t.Full != nil {
		*s = size{}
	}
	s.records += t.Records
	s.octets += t.Octets
}

func (s size) over(records int) bool { return s.records > records || s.octets > records*rfc2136.Octets }

// sameHistory reports whether the zone has the claim (TXT record) that this process changed last as p.state has it, or this process has
// changed none. In a zone that was restored from an older backup that claim differs, even if later updates by other clusters have raised
// the serial again.
func (p *Publisher) sameHistory(ctx context.Context) (bool, error) {
	if p.latest == "" {
		return true, nil
	}
	texts, err := p.client.TXT(ctx, p.latest)
	return err == nil && p.state.HasTXT(p.latest, texts), err
}

// next returns the state after a transfer.
func next(s *zone.State, t *rfc2136.Transfer) (*zone.State, error) {
	switch {
	case t.Full != nil:
		return zone.Parse(s.Origin, t.Full)
	case len(t.Steps) == 0 && t.Serial != s.Serial:
		return nil, fmt.Errorf("the primary's serial %d is older than %d", t.Serial, s.Serial)
	}
	steps := make([]zone.Delta, len(t.Steps))
	for i, d := range t.Steps {
		steps[i] = zone.Delta{Serial: d.To, Deleted: d.Deleted, Added: d.Added}
	}
	return s.Apply(steps...)
}

// failed records that the zone could not be read, and plans the next try.
func (p *Publisher) failed(err error) {
	p.failures++
	wait := about(min(away<<min(p.failures-1, 10), longAway))
	p.next.poll = time.Now().Add(wait)
	p.next.whole = time.Time{} // read the whole zone: a restored primary may have the same serial with other content
	p.o.Metrics.retry(p.o.Zone, string(rfc2136.KindOf(err)))
	if p.failures == 1 {
		p.o.Log.Warn("cannot read the zone from its primary; will retry; published records stay", "err", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.zone.Err = err
	reason := zone.Reason(rfc2136.KindOf(err))
	for _, h := range p.hosts {
		if !h.status.Programmed && !h.status.Left || h.set != h.seen {
			p.report(h, &zone.Conflict{Reason: reason, Message: err.Error()})
		}
	}
	p.tell()
}

// wakeAt returns when round is to be called again at the latest.
func (p *Publisher) wakeAt() time.Time {
	at := p.next.poll
	earlier := func(t time.Time) {
		if !t.IsZero() && t.Before(at) {
			at = t
		}
	}
	now := time.Now()
	for _, t := range []time.Time{p.beat.due, p.beat.rest, p.beat.keep, p.ailing.until} {
		if t.After(now) {
			earlier(t)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.hosts {
		if h.next.After(now) {
			earlier(h.next)
		}
	}
	return at
}
