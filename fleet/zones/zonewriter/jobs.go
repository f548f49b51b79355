package zonewriter

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/neardns/neardns/fleet/zones/zone"
)

// job is the step of one host that is about to be sent.
type job struct {
	zone.Step
	host   *host
	taken  bool   // the server answered NOERROR to the message with this step
	serial uint32 // serial of the zone, as last read before the step was sent
}

// plan returns the steps that can be sent now, and updates the hosts' statuses. try is above 0 only after a contended try of this round.
func (p *Publisher) plan(try int) []*job {
	now := time.Now()
	w := zone.Writer{Identity: p.o.Identity, Takeover: p.takeover(), Heir: p.heir()}
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
		st := p.planned(w, m, h.want, now)
		if c := p.beat.conflict(p.o.Identity, w.Takeover); c != nil {
			st.Conflict = c
		}
		if len(h.status.Unserved) > 0 && !st.Done() { // no repair: maybe the RRset has room for the Unserved addresses now
			h.status.Programmed = false
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
			p.report(h, &zone.Conflict{Reason: RecordsMissing, Message: fmt.Sprintf(
				"another program deletes or changes the records of %s; they are written again at %s", name, h.next.Format(time.TimeOnly))})
		case now.Before(h.next):
		case now.Before(p.ailing.until):
			p.wait(h)
		default:
			h.seen = h.set
			jobs = append(jobs, &job{Step: st, host: h})
		}
	}
	p.tell()
	return jobs
}

// done records that the zone has what this cluster wants to publish for a host, or after Remove nothing of it.
func (p *Publisher) done(h *host, now time.Time) {
	s := &h.status
	left := h.want.Empty()
	if left && p.beat.fence == unanswered {
		return // a message that got no answer may still take effect until the next heartbeat
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

// gone counts how often a programmed host's records were found missing or changed. It returns true if they must not be written again yet:
// the first time they are written at once, later after a pause that doubles. Before p.excused nothing is counted, because other clusters
// may have removed this one as dead.
func (p *Publisher) gone(h *host, try int, now time.Time) bool {
	if h.status.Programmed && h.seen == h.set && try == 0 {
		h.status.Programmed = false
		if now.Before(p.excused) {
			return false
		}
		h.repairs++
		if h.repairs > 1 {
			h.next = now.Add(p.later(h.repairs - 2))
		}
	}
	return h.repairs > 1 && h.seen == h.set && now.Before(h.next)
}

// later returns how long to wait (± 20 %) after n+1 failures in a row: pause, which doubles with each further failure, up to Validate.
func (p *Publisher) later(n int) time.Duration {
	return about(min(pause<<min(n, 12), p.o.Validate))
}

// report sets a host's conflict, and logs it if the host did not have a conflict with this reason. The mutex is held.
func (p *Publisher) report(h *host, c *zone.Conflict) {
	s := &h.status
	if s.Conflict == nil || s.Conflict.Reason != c.Reason {
		s.Since, s.Attempt = time.Now(), 0
		p.o.Metrics.conflict(p.o.Zone, string(c.Reason))
		p.o.Log.Warn("a host's records are not as wanted, or not known to be", "host", s.Host, "reason", string(c.Reason), "message", c.Message)
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

// tell wakes the goroutines that wait for a status change (Settle). The mutex is held.
func (p *Publisher) tell() {
	close(p.moved)
	p.moved = make(chan struct{})
}
