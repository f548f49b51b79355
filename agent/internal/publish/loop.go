package publish

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/agent/internal/ddns"
	"github.com/neardns/neardns/agent/internal/zone"
	"github.com/neardns/neardns/pkg/tick"
)

const (
	tries     = 8                      // after a prerequisite that does not hold; then comes pause
	firstWait = 5 * time.Millisecond   // before the second try; doubled, with jitter, up to
	lastWait  = 250 * time.Millisecond // this
	pause     = 5 * time.Second        // after a failure that a person must end; doubled up to Validate
	away      = time.Second            // before a primary that does not answer is asked again; doubled up to
	longAway  = 30 * time.Second       // this
	inARow    = 8                      // messages for one host that follow one another without a pause, be it ever so large
	passing   = 6                      // SERVFAILs in a row that are taken for a server that is busy
	perBatch  = 25                     // hosts in one message
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
		case <-p.o.Notify:
			p.next.poll = time.Time{}
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
		contended := p.send(ctx, steps)
		if !p.refresh(ctx, false) {
			break
		}
		p.verify(steps)
		if !contended {
			try = -1 // what is left is new
			continue
		}
		if try+1 >= tries {
			p.contended(steps)
			break
		}
		if try == tries/2 {
			p.next.whole = time.Time{} // perhaps the zone is not what its steps made of it
		}
		p.o.Metrics.retry(p.o.Zone, string(ddns.Prerequisite))
		tick.Pause(ctx, jitter(try))
	}
	return p.wakeAt()
}

// jitter is how long to wait before a try after the first: writers that met once are not to meet again.
func jitter(try int) time.Duration {
	return firstWait + time.Duration(rand.Int64N(int64(min(firstWait<<try, lastWait-firstWait)))) //nolint:gosec // jitter needs no secrecy
}

// refresh reads what changed in the zone, and reports whether it is known now. A serial that is asked first saves a transfer.
func (p *Publisher) refresh(ctx context.Context, serialFirst bool) bool {
	now := time.Now()
	whole := p.state == nil || !now.Before(p.next.whole)
	state, err := p.read(ctx, whole, serialFirst)
	for try := 0; ddns.KindOf(err) == ddns.ServerFailed && try < tries; try++ { // BIND says it to the eleventh transfer at a time
		p.o.Metrics.retry(p.o.Zone, string(ddns.ServerFailed))
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
	now = time.Now()
	p.next.poll = now.Add(about(p.o.Poll))
	if whole {
		p.next.whole = now.Add(about(p.o.Validate))
	}
	p.watch.Observe(state, now)
	p.beat.observe(state, p.o.Identity)
	p.state = state
	z := ZoneStatus{State: state, Read: now, Silent: map[string]time.Duration{}, Dead: p.watch.Dead()}
	for cluster := range state.Beats {
		z.Silent[cluster], _, _ = p.watch.Silent(cluster)
	}
	p.o.Metrics.read(p.o.Zone, z)
	p.mu.Lock()
	p.zone = z
	p.mu.Unlock()
	return true
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
		whole = !same || !ddns.Newer(serial, p.state.Serial)
	}
	if !whole {
		t, err := p.client.IXFR(ctx, p.state.Serial)
		if err != nil {
			return nil, err
		}
		state, err := next(p.state, t)
		if err == nil {
			return state, nil
		}
		p.o.Log.Info("the zone is read as a whole", "reason", err)
	}
	t, err := p.client.AXFR(ctx)
	if err != nil {
		return nil, err
	}
	return zone.Parse(p.o.Zone, t.Full)
}

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
func next(s *zone.State, t *ddns.Transfer) (*zone.State, error) {
	switch {
	case t.Full != nil:
		return zone.Parse(s.Origin, t.Full)
	case len(t.Steps) == 0 && t.Serial != s.Serial:
		return nil, fmt.Errorf("the primary's serial %d is older than %d", t.Serial, s.Serial)
	}
	var err error
	for _, d := range t.Steps {
		if s, err = s.Apply(d.To, d.Deleted, d.Added); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// failed notes that the primary cannot be read.
func (p *Publisher) failed(err error) {
	p.failures++
	wait := about(min(away<<min(p.failures-1, 10), longAway))
	p.next.poll = time.Now().Add(wait)
	p.next.whole = time.Time{} // a primary that was restored meanwhile may have reached our serial with another history
	p.o.Metrics.retry(p.o.Zone, string(ddns.KindOf(err)))
	if p.failures == 1 {
		p.o.Log.Warn("the primary cannot be asked; what is published stays", "err", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.zone.Err = err
	reason := zone.Reason(ddns.KindOf(err))
	for _, h := range p.hosts {
		if !h.status.Programmed && !h.status.Left || h.set != h.seen {
			p.report(h, &zone.Conflict{Reason: reason, Message: err.Error()})
		}
	}
	p.tell()
}

// job is one host's step on its way.
type job struct {
	zone.Step
	host  *host
	set   int
	taken bool // the server said NOERROR
}

// plan returns the steps that may be sent now, and updates the status of the others.
func (p *Publisher) plan(try int) []*job {
	now := time.Now()
	w := zone.Writer{Identity: p.o.Identity, Limit: p.limitNow(now), Takeover: p.takeover()}
	p.mu.Lock()
	defer p.mu.Unlock()
	var jobs []*job
	for _, name := range slices.Sorted(maps.Keys(p.hosts)) {
		h := p.hosts[name]
		fresh := h.set != h.seen
		if fresh {
			h.next, h.repairs, h.drops = time.Time{}, 0, 0
		}
		m := h.memory
		if w.Takeover || p.beat.fence != barred {
			m.Sent = nil
		}
		st := p.state.Plan(w, m, h.want)
		if c := p.beat.conflict(p.o.Identity, w.Takeover); c != nil {
			st.Conflict = c
		}
		h.status.Held, h.status.Notes, h.status.Unserved = p.state.Hosts[name], st.Notes, st.Unserved
		switch {
		case st.Conflict != nil:
			h.seen = h.set
			p.report(h, st.Conflict)
		case st.Done():
			h.seen = h.set
			if p.beat.fence == barred {
				h.memory = zone.Memory{Generation: st.Next, Sent: map[string]bool{}}
				if st.Claim != "" {
					h.memory.Sent[st.Claim] = true
				}
			}
			h.status.Generation = st.Next
			p.done(h, now)
		case p.gone(h, try, now):
			p.report(h, &zone.Conflict{Reason: RecordsMissing, Message: fmt.Sprintf("somebody takes the records of %s away; they are written again at %s",
				name, h.next.Format(time.TimeOnly))})
		case !now.Before(h.next):
			h.seen = h.set
			jobs = append(jobs, &job{Step: st, host: h, set: h.set})
		}
	}
	p.tell()
	return jobs
}

// done notes that the zone says what it should of a host.
func (p *Publisher) done(h *host, now time.Time) {
	s := &h.status
	left := h.want.Empty()
	if left && p.beat.fence == unanswered {
		return // a message without an answer may still be on its way: the next heartbeat bars it
	}
	if s.Programmed == !left && s.Left == left && s.Conflict == nil {
		if now.Sub(h.stable) > p.o.Validate {
			h.repairs = 0
		}
		return
	}
	s.Programmed, s.Left, s.Conflict, s.Attempt, s.Since = !left, left, nil, 0, time.Time{}
	h.stable, h.drops, h.taken = now, 0, 0
	p.changed(h)
}

// gone reports whether the records of a programmed host went missing, and are to be written again only later: at once the first time, then
// after a pause that doubles.
func (p *Publisher) gone(h *host, try int, now time.Time) bool {
	if h.status.Programmed && h.seen == h.set && try == 0 && len(h.status.Unserved) == 0 {
		h.status.Programmed = false
		h.repairs++
		if h.repairs > 1 {
			h.next = now.Add(p.later(h.repairs - 2))
		}
	}
	return h.repairs > 1 && h.seen == h.set && now.Before(h.next)
}

// later is how long to wait after the nth failure in a row.
func (p *Publisher) later(n int) time.Duration {
	return about(min(pause<<min(n, 12), p.o.Validate))
}

// report notes why a host is not as it should be. The mutex is held.
func (p *Publisher) report(h *host, c *zone.Conflict) {
	s := &h.status
	if s.Conflict == nil || s.Conflict.Reason != c.Reason {
		s.Since, s.Attempt = time.Now(), 0
		p.o.Metrics.conflict(p.o.Zone, string(c.Reason))
		p.o.Log.Warn("a host is not as it should be", "host", s.Host, "reason", string(c.Reason), "message", c.Message)
	}
	s.Attempt++
	s.Conflict, s.Programmed, s.Left = c, false, false
	p.changed(h)
}

func (p *Publisher) changed(h *host) {
	if p.o.Changed != nil {
		p.o.Changed(h.status.Host)
	}
}

// tell wakes those who wait for a status. The mutex is held.
func (p *Publisher) tell() {
	close(p.moved)
	p.moved = make(chan struct{})
}

// send sends the steps, several hosts in a message, and reports whether others were faster with any of them.
func (p *Publisher) send(ctx context.Context, jobs []*job) (contended bool) {
	if len(jobs) == 0 { // a heartbeat is due
		err := p.update(ctx, nil, p.beatChanges(true))
		if ddns.KindOf(err) == ddns.ServerFailed && p.busy < passing {
			p.busy++
			return true
		}
		p.beatSent(err)
		return ddns.KindOf(err) == ddns.Prerequisite
	}
	for len(jobs) > 0 {
		n := fill(jobs)
		again, stop := p.sendBatch(ctx, jobs[:n])
		contended = contended || again
		if stop {
			return contended
		}
		jobs = jobs[n:]
	}
	return contended
}

// fill returns how many of the jobs fit in one message.
func fill(jobs []*job) int {
	size, n := 0, 0
	for n < len(jobs) && n < perBatch {
		for _, rr := range slices.Concat(jobs[n].Message.Prereqs, jobs[n].Message.Changes) {
			size += dns.Len(rr)
		}
		if n > 0 && size > batchSize {
			break
		}
		n++
	}
	return n
}

// sendBatch sends one message. What the server minds about a message with several hosts is asked of each by itself. It reports whether
// others were faster, and whether to send nothing more for now.
func (p *Publisher) sendBatch(ctx context.Context, jobs []*job) (contended, stop bool) {
	var prereqs, changes []dns.RR
	for _, j := range jobs {
		prereqs, changes = append(prereqs, j.Message.Prereqs...), append(changes, j.Message.Changes...)
	}
	joins := slices.ContainsFunc(jobs, func(j *job) bool { return !j.Leaves })
	withBeat := joins && p.beatMissing()
	if withBeat {
		changes = append(changes, p.beatChanges(false)...)
	}
	p.note(jobs)
	err := p.update(ctx, prereqs, changes)
	if withBeat && err == nil {
		p.beatSent(nil)
	}
	switch kind := ddns.KindOf(err); {
	case err == nil:
		p.took(jobs)
	case kind == ddns.Prerequisite:
		return true, false
	case kind == ddns.ServerFailed && p.busy < passing:
		p.busy++ // PowerDNS says it while another message has its database locked
		return true, false
	case ddns.Unsure(err), kind == ddns.Unreachable, ctx.Err() != nil:
		if ddns.Unsure(err) {
			p.fence()
		}
		return false, true
	case len(jobs) > 1:
		for i := range jobs {
			again, stop := p.sendBatch(ctx, jobs[i:i+1])
			contended = contended || again
			if stop {
				return contended, true
			}
		}
	case kind == ddns.ServerFailed && p.learnLimit(jobs[0]):
		return true, false
	default:
		p.refused(jobs[0], err)
	}
	return contended, false
}

func (p *Publisher) took(jobs []*job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, j := range jobs {
		j.taken = true
		j.host.status.Writes++
		p.o.Metrics.wrote(p.o.Zone, j.Step)
	}
}

// note remembers what the zone may hold by this message from now on.
func (p *Publisher) note(jobs []*job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, j := range jobs {
		h := j.host
		if j.Claim != "" {
			if h.memory.Sent == nil {
				h.memory.Sent = map[string]bool{}
			}
			h.memory.Sent[j.Claim] = true
		}
		h.memory.Generation = max(h.memory.Generation, j.Next)
		for _, g := range j.Gone {
			if !slices.Contains(h.memory.Gone, g) {
				h.memory.Gone = append(h.memory.Gone, g)
			}
		}
		h.status.Messages++
		h.status.Generation = h.memory.Generation
	}
}

// update sends one message. The heartbeat as read is a prerequisite of each: the next heartbeat bars every message before it, and a cluster
// that was removed meanwhile changes nothing before it has read the zone.
func (p *Publisher) update(ctx context.Context, prereqs, changes []dns.RR) error {
	if p.o.Rate > 0 {
		tick.Pause(ctx, time.Until(p.sent.Add(time.Duration(float64(time.Second)/p.o.Rate))))
	}
	if p.o.Heartbeat > 0 {
		prereqs = append(prereqs, p.state.BeatAsRead(p.o.Identity.Cluster)...)
	}
	p.sent = time.Now()
	err := p.client.Update(ctx, prereqs, changes)
	if err == nil {
		p.busy = 0
	}
	p.o.Metrics.message(p.o.Zone, result(err))
	p.o.Log.Debug("a message was sent", "prerequisites", len(prereqs), "changes", len(changes), "err", err)
	return err
}

func result(err error) string {
	if err == nil {
		return "ok"
	}
	return string(ddns.KindOf(err))
}

// refused notes that the server will not have a message.
func (p *Publisher) refused(j *job, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := j.host
	h.drops++
	h.next = time.Now().Add(p.later(h.drops - 1))
	p.report(h, &zone.Conflict{Reason: zone.Reason(ddns.KindOf(err)), Message: err.Error()})
}

// verify compares what was read back with what the server said it took, and forgets what is settled.
func (p *Publisher) verify(jobs []*job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, j := range jobs {
		if !j.taken {
			continue
		}
		h := j.host
		left := p.state.Dropped(&j.Step)
		if len(left) == 0 {
			h.drops = 0
			if h.taken++; h.taken%inARow == 0 {
				h.next = time.Now().Add(about(pause))
			}
			h.memory.Sent, h.memory.Gone = nil, nil
			p.latest = p.state.ClaimName(j.Host, p.o.Identity.Cluster)
			if j.Claim != "" {
				h.memory.Sent = map[string]bool{j.Claim: true}
			}
			continue
		}
		h.drops++
		h.next = time.Now().Add(p.later(h.drops - 1))
		p.report(h, &zone.Conflict{Reason: NotPermitted, Message: fmt.Sprintf("the server said that it took the change, and left out %s; allow the key to write it",
			strings.Join(left[:min(len(left), 5)], ", "))})
	}
	p.tell()
}

// contended lets hosts rest whose prerequisites did not hold time after time.
func (p *Publisher) contended(jobs []*job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, j := range jobs {
		if !j.taken {
			j.host.next = time.Now().Add(about(pause))
			p.report(j.host, &zone.Conflict{Reason: Contended, Message: fmt.Sprintf("others changed the same %d times; it is tried again at %s",
				tries, j.host.next.Format(time.TimeOnly))})
		}
	}
	p.tell()
}

// learnLimit takes a SERVFAIL for a message that adds addresses as a set that is full (BIND: max-records-per-type, 100 as installed), and
// reports whether it is worth to plan again.
func (p *Publisher) learnLimit(j *job) bool {
	const installed = 100
	before, after := p.state.Growth(&j.Message)
	switch {
	case after > installed:
		p.limit.n = installed
	case p.limit.n == installed && before != p.limit.before: // others were faster
	case before > 0:
		p.limit.n = before
	default:
		p.limit = limit{}
		return false
	}
	p.limit.before, p.limit.until = before, time.Now().Add(about(p.o.Validate))
	return true
}

func (p *Publisher) limitNow(now time.Time) int {
	if now.After(p.limit.until) {
		p.limit = limit{} // perhaps it was raised
	}
	return p.limit.n
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
	for _, t := range []time.Time{p.beat.due, p.beat.rest, p.beat.keep} {
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
