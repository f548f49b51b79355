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
	tries     = 8                      // tries after an unmet prerequisite, before pause
	firstWait = 5 * time.Millisecond   // before the second try; doubled, with jitter, up to
	lastWait  = 250 * time.Millisecond // this maximum
	pause     = 5 * time.Second        // after a failure that needs a person; doubled up to Validate
	away      = time.Second            // before the next query to a primary that does not answer; doubled up to
	longAway  = 4 * time.Second        // this maximum: a client that waits sees the primary return within 5 s, and has 5 s left to write
	inARow    = 8                      // consecutive messages for one host without a pause, even if its change needs more
	passing   = 6                      // SERVFAILs in a row that count as a busy server
	perBatch  = 25                     // hosts in one message
	share     = 20                     // reading a zone that is transferred whole for each change may take 1/20 of the time
	longPoll  = 30 * time.Second       // the maximum poll interval for that reason
	batchSize = 48 << 10               // bytes, uncompressed
)

// Run keeps this cluster's part of the zone up to date until ctx ends, and then returns nil. What is published stays in the zone.
func (p *Publisher) Run(ctx context.Context) error {
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
	return nil
}

// round does everything that is due and returns when to call it again.
func (p *Publisher) round(ctx context.Context) time.Time {
	now := time.Now()
	if p.failures > 0 && now.Before(p.next.poll) {
		return p.next.poll // the primary does not answer: new changes wait for the next poll
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
		if contended { // other writers came first; wait for them, so that the next read is newer
			tick.Pause(ctx, jitter(max(try, p.busy)))
		}
		look := func() bool { return p.refresh(ctx, false) }
		if !look() || !p.readBack(ctx, steps, look) {
			break
		}
		p.verify(steps)
		if !contended {
			try = -1 // start over: the remaining changes are new
			continue
		}
		if slices.ContainsFunc(steps, func(j *job) bool { return j.taken }) {
			try = 0
		}
		if p.busy > busy { // the server was busy; no other writer came first
			try--
		}
		if try+1 >= tries {
			p.contended(steps)
			break
		}
		if try == tries/2 {
			p.next.whole = time.Time{} // the zone may differ from what the transferred steps made of it
		}
		reason := rfc2136.Prerequisite
		if p.busy > busy {
			reason = rfc2136.ServerFailed
		}
		p.o.Metrics.retry(p.o.Zone, string(reason))
	}
	return p.wakeAt()
}

// jitter returns how long to wait before a retry, so that writers that collided once do not collide again.
func jitter(try int) time.Duration {
	return firstWait + time.Duration(rand.Int64N(int64(min(firstWait<<try, lastWait-firstWait)))) //nolint:gosec // jitter needs no secrecy
}

// refresh reads the changes of the zone and reports whether it is up to date. If serialFirst is set, it queries the serial first, which
// often saves a transfer.
func (p *Publisher) refresh(ctx context.Context, serialFirst bool) bool {
	whole := p.state == nil || !time.Now().Before(p.next.whole)
	state, err := p.read(ctx, whole, serialFirst)
	// BIND answers the eleventh concurrent transfer with SERVFAIL.
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
	p.watch.Pace = 2 * p.rest() // allows for jitter and for the time that a read takes
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

// rest returns how long to wait between two polls. A server without incremental transfers (PowerDNS) sends the whole zone to each reader
// after each change. If many clusters filled a large zone, these transfers would keep the server from accepting their messages.
func (p *Publisher) rest() time.Duration {
	most := longPoll
	if p.o.Heartbeat > 0 {
		most = min(most, p.o.Heartbeat/3)
	}
	return max(p.o.Poll, min(share*p.cost, most))
}

func (p *Publisher) read(ctx context.Context, whole, serialFirst bool) (*zone.State, error) {
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
	// Small changes can together make a zone too large. So the zone is read whole when the records read since the last whole read exceed
	// the limit.
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
		p.o.Log.Info("incremental transfer failed; reading the whole zone", "err", err)
	}
	t, err := p.client.AXFR(ctx)
	if err != nil {
		return nil, err
	}
	p.seen.add(t)
	return zone.Parse(p.o.Zone, t.Full)
}

// mostRecords is also the default of an edge. 100,000 records need 35 MiB of memory, and 70 MiB while the zone is read again.
const mostRecords = 100_000

// size is how much of a zone was read: records and octets.
type size struct{ records, octets int }

func (s *size) add(t *rfc2136.Transfer) {
	if t.Full != nil {
		*s = size{}
	}
	s.records += t.Records
	s.octets += t.Octets
}

func (s size) over(records int) bool { return s.records > records || s.octets > records*rfc2136.Octets }

// sameHistory reports whether the zone still has the claim that this cluster wrote last, as read back. A zone that was restored from a
// backup does not, even if the writes of other clusters have raised its serial since.
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

// failed records that the primary cannot be read.
func (p *Publisher) failed(err error) {
	p.failures++
	wait := about(min(away<<min(p.failures-1, 10), longAway))
	p.next.poll = time.Now().Add(wait)
	p.next.whole = time.Time{} // a primary that was restored may reach our serial with a different history
	p.o.Metrics.retry(p.o.Zone, string(rfc2136.KindOf(err)))
	if p.failures == 1 {
		p.o.Log.Warn("cannot read the zone from its primary; published records stay", "err", err)
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

// wakeAt returns when the next action is due.
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
