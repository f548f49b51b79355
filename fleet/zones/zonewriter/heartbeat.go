package zonewriter

import (
	"context"
	"fmt"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/fleet/zones/zone"
)

// observe sets foreign if the heartbeat in the zone is another writer's. If the zone has no heartbeat of this cluster, and this process has
// sent none, claims of another instance count as foreign too: that instance may be alive and configured to send no heartbeat.
func (b *beat) observe(s *zone.State, me zone.Identity) {
	x, ok := s.Beats[me.Cluster]
	b.foreign = nil
	if !ok && b.counter == 0 {
		for _, host := range s.Of(me.Cluster) {
			if c, claims := s.Hosts[host].Claims[me.Cluster]; claims && c.Instance != me.Instance {
				b.foreign = &zone.Beat{Instance: c.Instance}
			}
		}
	}
	if ok && (x.Instance != me.Instance || b.counter > 0 && b.fence == barred && x.Counter > b.counter) {
		b.foreign = &x
	}
}

func (b *beat) conflict(me zone.Identity, takeover bool) *zone.Conflict {
	if b.foreign == nil || takeover {
		return nil
	}
	return &zone.Conflict{Reason: zone.ClusterIDInUse, Message: fmt.Sprintf(
		"instance %s writes under the cluster id %s, too; give one of the two clusters another id", b.foreign.Instance, me.Cluster)}
}

// fence records, if heartbeats are on, that a message with hosts' changes got no usable answer. The next heartbeat then makes sure that
// this message can no longer take effect, because each message has the current heartbeat as a prerequisite.
func (p *Publisher) fence() {
	if p.o.Heartbeat > 0 {
		p.beat.on(messageLost, p.part(), p.o.Heartbeat, time.Now())
	}
}

// part returns what the zone has of this cluster, and what this process wants to publish.
func (p *Publisher) part() part {
	_, there := p.state.Beats[p.o.Identity.Cluster]
	wants, left := p.wants()
	return part{there: there, mine: len(p.state.Of(p.o.Identity.Cluster)) > 0, wants: wants, left: left}
}

// takeover reports whether another writer under this cluster's ID is dead, because its heartbeat has not changed for RemoveAfter
// periods.
func (p *Publisher) takeover() bool {
	_, periods, ok := p.watch.Silent(p.o.Identity.Cluster)
	return p.beat.foreign != nil && ok && periods >= zone.RemoveAfter
}

// heir reports whether this writer may replace the TXT records (claims) that another instance wrote under this cluster's ID. It may if
// the heartbeat in the zone is its own: it wrote that heartbeat when there was none, or in place of one that had not changed for long.
func (p *Publisher) heir() bool {
	b, ok := p.state.Beats[p.o.Identity.Cluster]
	return ok && b.Instance == p.o.Identity.Instance && p.beat.foreign == nil
}

// beatMissing reports whether the next change must include a heartbeat.
func (p *Publisher) beatMissing() bool {
	b, ok := p.state.Beats[p.o.Identity.Cluster]
	return p.o.Heartbeat > 0 && p.beat.written == nil && (!ok || b.Instance != p.o.Identity.Instance || p.beat.fence != barred || p.late() > 1)
}

// late returns by how many periods this cluster's heartbeat is overdue.
func (p *Publisher) late() float64 { return p.beat.late(p.o.Heartbeat, time.Now()) }

// beatDue reports whether to send a message with only a heartbeat, or its deletion, now.
func (p *Publisher) beatDue() bool {
	if p.o.Heartbeat == 0 || p.beat.conflict(p.o.Identity, p.takeover()) != nil {
		return false
	}
	now := time.Now()
	return !now.Before(p.ailing.until) && p.beat.needed(p.part(), now)
}

// wants reports whether this cluster is to publish at least one host of the zone (some), and whether hosts were passed to Remove and none
// is to be published (left).
func (p *Publisher) wants() (some, left bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.hosts {
		some = some || !h.want.Empty()
	}
	return some, !some && len(p.hosts) > 0
}

// beatChanges returns the changes that write the next heartbeat. They delete it instead if the message has no other changes (alone), no
// earlier message can take effect any more, not even one that was sent when the zone had no heartbeat (keep), and the zone has no record of
// this cluster for any host.
func (p *Publisher) beatChanges(alone bool) []dns.RR {
	cluster := p.o.Identity.Cluster
	if alone && p.beat.fence == barred && time.Now().After(p.beat.keep) && len(p.state.Of(cluster)) == 0 {
		return p.state.PlanNoBeat(cluster)
	}
	p.beat.counter = max(p.beat.counter, p.state.Beats[cluster].Counter) + 1
	return p.state.PlanBeat(cluster, p.ownBeat())
}

// ownBeat returns the heartbeat with the counter that this process used last, which was sent or is about to be sent.
func (p *Publisher) ownBeat() zone.Beat {
	return zone.Beat{Counter: p.beat.counter, Instance: p.o.Identity.Instance, Period: p.o.Heartbeat.Truncate(time.Second)}
}

// beatSent records the result of a message with a heartbeat or its deletion.
func (p *Publisher) beatSent(err error) {
	result := beatRefused
	switch {
	case err == nil:
		result = beatAccepted
	case rfc2136.Unsure(err):
		result = beatLost
	case rfc2136.KindOf(err) == rfc2136.Prerequisite:
		result = beatOutrun
	}
	if err == nil && p.beat.fence != barred {
		p.mu.Lock()
		for _, h := range p.hosts {
			h.memory.Sent = nil
		}
		p.mu.Unlock()
	}
	p.beat.on(result, p.part(), p.o.Heartbeat, time.Now())
}

// removeDead removes the records of those dead clusters that Watch.Removable returns, if Options.Remove is set and heartbeats are on. It
// does nothing while another writer uses this cluster's ID, or before p.removal.
func (p *Publisher) removeDead(ctx context.Context) {
	if !p.o.Remove || p.o.Heartbeat == 0 || p.beat.foreign != nil || time.Now().Before(p.removal) {
		return
	}
	dead := p.watch.Dead(zone.ReportAfter)
	for _, cluster := range p.watch.Removable(p.o.Identity.Cluster) {
		if !p.removeOne(ctx, cluster, dead) {
			return
		}
	}
}

// removeOne removes one dead cluster's records, except those that MayRemove keeps, and the heartbeat if none is kept. It returns false if
// the caller must not go on with the next dead cluster now. Each message has the dead cluster's heartbeat as a prerequisite: if that
// cluster is alive after all, its next heartbeat stops the removal.
func (p *Publisher) removeOne(ctx context.Context, cluster string, dead []string) bool {
	watched, kept := p.state.BeatAsRead(cluster), 0
	for _, name := range p.state.Of(cluster) {
		st := p.state.PlanRemoval(name, cluster)
		if st.Message.Empty() {
			continue // another program removed them after the loop began
		}
		if !p.state.Hosts[name].MayRemove(cluster, dead, p.o.Works) {
			kept++
			continue
		}
		if err := p.update(ctx, append(st.Message.Prereqs, watched...), st.Message.Changes); err != nil {
			p.o.Log.Warn("cannot remove a dead cluster's records of a host; will retry while it is dead", "dead", cluster, "host", name, "err", err)
			p.removal = time.Now().Add(about(p.o.Heartbeat))
			p.refresh(ctx, false)
			return false
		}
		p.o.Log.Warn("removed a dead cluster's records of a host", "dead", cluster, "host", name)
		p.o.Metrics.removed(p.o.Zone)
		if !p.refresh(ctx, false) {
			return false
		}
	}
	if kept > 0 { // Works, which is called for each host, may be slow, and may forget a host for which it is not called for 10 min
		p.removal = time.Now().Add(about(min(p.o.Heartbeat, 5*time.Minute)))
		return true
	}
	if err := p.update(ctx, watched, p.state.PlanNoBeat(cluster)); err != nil {
		p.removal = time.Now().Add(about(p.o.Heartbeat))
		p.o.Log.Warn("cannot remove a dead cluster's heartbeat; will retry while it is dead", "dead", cluster, "err", err)
	}
	return p.refresh(ctx, false)
}
