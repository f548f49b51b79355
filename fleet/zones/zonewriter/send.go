package zonewriter

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/tick"
)

// send sends the jobs, several hosts in one message; without jobs, it sends only a heartbeat or its deletion. It returns contended if a
// message must be planned again. The first such message ends it, because the rest must probably be planned again, too. With alone, each
// host gets its own message, and a contended one does not end it, so that a host that others keep changing does not delay the other hosts.
func (p *Publisher) send(ctx context.Context, jobs []*job, alone bool) (contended bool) {
	if len(jobs) == 0 { // only a heartbeat, or its deletion, is due
		err := p.update(ctx, nil, p.beatChanges(true))
		if rfc2136.KindOf(err) == rfc2136.ServerFailed && p.busy < passing {
			p.busy++
			return true
		}
		p.beatSent(err)
		return rfc2136.KindOf(err) == rfc2136.Prerequisite
	}
	for len(jobs) > 0 {
		n := 1
		if !alone {
			n = fill(jobs)
		}
		again, stop := p.sendBatch(ctx, jobs[:n])
		contended = contended || again
		if stop || again && !alone {
			return contended
		}
		jobs = jobs[n:]
	}
	return contended
}

// fill returns how many of the jobs fit into one message.
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

// sendBatch sends the jobs in one message. It returns contended if jobs must be planned again, for example because another cluster's change
// came first, and stop if no more may be sent before the zone is read again, for example because the result is unknown.
func (p *Publisher) sendBatch(ctx context.Context, jobs []*job) (contended, stop bool) {
	err := p.post(ctx, jobs)
	if rfc2136.KindOf(err) != rfc2136.ServerFailed {
		return p.became(ctx, jobs, err)
	}
	if p.busy < passing {
		p.busy++
		return true, false
	}
	return p.judge(ctx, jobs, err)
}

// post sends the jobs in one message, with a heartbeat if beatMissing requires one and not all jobs remove this cluster from their hosts.
func (p *Publisher) post(ctx context.Context, jobs []*job) error {
	var prereqs, changes []dns.RR
	for _, j := range jobs {
		prereqs, changes = append(prereqs, j.Message.Prereqs...), append(changes, j.Message.Changes...)
		j.serial = p.state.Serial
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
		b := p.ownBeat() // a prerequisite of the messages that are sent before the next read
		p.beat.written = &b
	}
	return err
}

// became handles the result of a message, unless that is SERVFAIL. If the server refuses a message with several hosts, became sends each
// host in a message of its own, to find the one that is refused.
func (p *Publisher) became(ctx context.Context, jobs []*job, err error) (contended, stop bool) {
	switch kind := rfc2136.KindOf(err); {
	case err == nil:
		p.took(jobs)
	case kind == rfc2136.Prerequisite:
		return true, false
	case ctx.Err() != nil:
		return false, true
	case rfc2136.Unsure(err), kind == rfc2136.Unreachable:
		if rfc2136.Unsure(err) {
			p.fence()
		}
		for _, j := range jobs {
			p.refused(j, err)
		}
		return false, true
	case len(jobs) > 1:
		return each(jobs, func(one []*job) (bool, bool) { return p.sendBatch(ctx, one) })
	default:
		p.refused(jobs[0], err)
	}
	return false, false
}

func (p *Publisher) took(jobs []*job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, j := range jobs {
		j.taken = true
		p.limit.tested(j.Host)
		j.host.status.Writes++
		p.o.Metrics.wrote(p.o.Zone, j.Step)
	}
}

// note records, before a message is sent, which TXT records (claims) of this cluster the zone may have after it, and which addresses the
// message deletes.
func (p *Publisher) note(jobs []*job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, j := range jobs {
		h := j.host
		if j.Claim != "" {
			// With an empty Sent, the claim (TXT record) that was found in the zone was treated as this cluster's own. Keep that claim in
			// Sent, in case the server does not accept the message.
			if len(h.memory.Sent) == 0 {
				h.memory.Sent = map[string]bool{}
				if j.Stands != "" {
					h.memory.Sent[j.Stands] = true
				}
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

// update sends one message, after a pause if Options.Rate requires it. If heartbeats are on, each message has the current heartbeat as a
// prerequisite. So after the next heartbeat no earlier message can take effect, and a cluster that others have removed cannot write before
// it has read the zone again.
func (p *Publisher) update(ctx context.Context, prereqs, changes []dns.RR) error {
	if p.o.Rate > 0 {
		tick.Pause(ctx, time.Until(p.sent.Add(time.Duration(float64(time.Second)/p.o.Rate))))
	}
	if p.o.Heartbeat > 0 {
		stands := p.state.BeatAsRead(p.o.Identity.Cluster)
		if p.beat.written != nil {
			stands = p.state.BeatIs(p.o.Identity.Cluster, *p.beat.written)
		}
		prereqs = append(prereqs, stands...)
	}
	p.sent = time.Now()
	err := p.client.Update(ctx, prereqs, changes)
	if err == nil {
		p.busy, p.ailing = 0, ailing{}
	}
	p.o.Metrics.message(p.o.Zone, result(err))
	p.o.Log.Debug("update tried at the primary; it failed if err is set", "prerequisites", len(prereqs), "changes", len(changes), "err", err)
	return err
}

func result(err error) string {
	if err == nil {
		return "ok"
	}
	return string(rfc2136.KindOf(err))
}

// refused records that a host's message failed, and when to try again.
func (p *Publisher) refused(j *job, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := j.host
	if h.drops++; h.drops == 1 && (rfc2136.Unsure(err) || rfc2136.KindOf(err) == rfc2136.Unreachable) {
		return // the primary may be restarting, or have the change: read the zone, and if it lacks the change, try once more without a pause
	}
	h.next = time.Now().Add(p.later(h.drops - 1))
	p.report(h, &zone.Conflict{Reason: zone.Reason(rfc2136.KindOf(err)), Message: err.Error()})
}

// readBack calls look, which reads the zone, until the zone has all changes that the server accepted, with 8 pauses (about half a second
// together) at most, or 16 (about 1.5 s) while the serial has not changed. BIND with inline-signing accepts a change before it has signed
// it, and answers from the signed zone a moment later. readBack returns false if the zone cannot be read, or ctx has ended.
func (p *Publisher) readBack(ctx context.Context, jobs []*job, look func() bool) bool {
	for n := range 2 * tries {
		lacks, moved := false, true
		for _, j := range jobs {
			if j.taken && len(p.state.Dropped(&j.Step)) > 0 {
				lacks, moved = true, moved && p.state.Serial != j.serial
			}
		}
		if !lacks || moved && n >= tries {
			break
		}
		if !tick.Pause(ctx, jitter(n)) || !look() {
			return false
		}
	}
	return true
}

// verify compares the zone, as read back, with the changes that the server accepted. Changes that are missing are reported as
// NotPermitted.
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
		p.report(h, &zone.Conflict{Reason: NotPermitted, Message: fmt.Sprintf("the server accepted the change without %s; "+
			"allow the key to write it", strings.Join(left[:min(len(left), 5)], ", "))})
	}
	p.tell()
}

// contended makes the hosts that were not written wait for a pause, after the last of several contended tries.
func (p *Publisher) contended(jobs []*job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, j := range jobs {
		if !j.taken {
			j.host.next = time.Now().Add(about(pause))
			p.report(j.host, &zone.Conflict{Reason: Contended, Message: fmt.Sprintf("others changed the same records in %d tries; next try at %s",
				tries, j.host.next.Format(time.TimeOnly))})
		}
	}
	p.tell()
}
