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
	tries     = 8                      // after a prerequisite that does not hold; then comes pause
	firstWait = 5 * time.Millisecond   // before the second try; doubled, with jitter, up to
	lastWait  = 250 * time.Millisecond // this
	pause     = 5 * time.Second        // after a failure that a person must end; doubled up to Validate
	away      = time.Second            // before a primary that does not answer is asked again; doubled up to
	longAway  = 4 * time.Second        // this: whoever waits for it sees it within five seconds, and has as many to write
	inARow    = 8                      // messages for one host that follow one another without a pause, be it ever so large
	passing   = 6                      // SERVFAILs in a row that are taken for a server that is busy
	perBatch  = 25                     // hosts in one message
	share     = 20                     // a zone that comes whole for each change is read for a twentieth of the time at most
	longPoll  = 30 * time.Second       // from one look to the next for that reason, at most
	batchSize = 48 << 10               // bytes, uncompressed
)

// Run keeps the zone until ctx ends. It returns nil then, and leaves what is published where it is.
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

// round does all that is due, and returns when it is to be called again.
func (p *Publisher) round(ctx context.Context) time.Time {
	now := time.Now()
	if p.failures > 0 && now.Before(p.next.poll) {
		return p.next.poll // the primary is away: whoever wants something waits with the others
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
		if contended { // who was faster goes on: what is read later is newer
			tick.Pause(ctx, jitter(max(try, p.busy)))
		}
		look := func() bool { return p.refresh(ctx, false) }
		if !look() || !p.readBack(ctx, steps, look) {
			break
		}
		p.verify(steps)
		if !contended {
			try = -1 // what is left is new
			continue
		}
		if slices.ContainsFunc(steps, func(j *job) bool { return j.taken }) {
			try = 0
		}
		if p.busy > busy { // nobody was faster
			try--
		}
		if try+1 >= tries {
			p.contended(steps)
			break
		}
		if try == tries/2 {
			p.next.whole = time.Time{} // perhaps the zone is not what its steps made of it
		}
		reason := rfc2136.Prerequisite
		if p.busy > busy {
			reason = rfc2136.ServerFailed
		}
		p.o.Metrics.retry(p.o.Zone, string(reason))
	}
	return p.wakeAt()
}

// jitter is how long to wait before a try after the first: writers that met once are not to meet again.
func jitter(try int) time.Duration {
	return firstWait + time.Duration(rand.Int64N(int64(min(firstWait<<try, lastWait-firstWait)))) //nolint:gosec // jitter needs no secrecy
}

// refresh reads what changed in the zone, and reports whether it is known now. A serial that is asked first saves a transfer.
func (p *Publisher) refresh(ctx context.Context, serialFirst bool) bool {
	whole := p.state == nil || !time.Now().Before(p.next.whole)
	state, err := p.read(ctx, whole, serialFirst)
	for try := 0; rfc2136.KindOf(err) == rfc2136.ServerFailed && try < tries; try++ { // BIND says it to the eleventh transfer at a time
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
	p.watch.Pace = 2 * p.rest() // with jitter, and the time that a look takes
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

// rest is how long to wait from one look to the next. A server without increments (PowerDNS) has to send the zone for each change of
// anybody's, to everybody who looks: many clusters that fill a large zone would keep it from taking their messages.
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
	// Changes that each have room may make a zone of any size. It is read whole after so many that it could be too large.
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
		p.o.Log.Info("the zone is read as a whole", "reason", err)
	}
	t, err := p.client.AXFR(ctx)
	if err != nil {
		return nil, err
	}
	p.seen.add(t)
	return zone.Parse(p.o.Zone, t.Full)
}

// mostRecords is what an edge takes by default, too. 100,000 records take 35 MiB of memory, and 70 while they are read anew.
const mostRecords = 100_000

// size is how much of a zone was read.
type size struct{ records, octets int }

func (s *size) add(t *rfc2136.Transfer) {
	if t.Full != nil {
		*s = size{}
	}
	s.records += t.Records
	s.octets += t.Octets
}

func (s size) over(records int) bool { return s.records > records || s.octets > records*rfc2136.Octets }

// sameHistory reports whether the zone has the claim that this cluster wrote last, as it was read back: a zone that was restored from a
// backup has not, whatever serial others' writes have brought it to.
func (p *Publisher) sameHistory(ctx context.Context) (bool, error) {
	if p.latest == "" {
		return true, nil
	}
	texts, err := p.client.TXT(ctx, p.latest)
	return err == nil && p.state.HasTXT(p.latest, texts), err
}

// next is the state after a transfer.
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

// failed notes that the primary cannot be read.
func (p *Publisher) failed(err error) {
	p.failures++
	wait := about(min(away<<min(p.failures-1, 10), longAway))
	p.next.poll = time.Now().Add(wait)
	p.next.whole = time.Time{} // a primary that was restored meanwhile may have reached our serial with another history
	p.o.Metrics.retry(p.o.Zone, string(rfc2136.KindOf(err)))
	if p.failures == 1 {
		p.o.Log.Warn("the primary cannot be asked; what is published stays", "err", err)
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

// wakeAt returns when something is due.
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
