package zonewriter

import (
	"time"

	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/fleet/zones/zone"
)

// beat is the state of the cluster's own heartbeat, and the policy of when it is sent. It reads no clock.
type beat struct {
	due     time.Time
	rest    time.Time       // no message with only the heartbeat before this time, because the last one failed
	counter uint64          // the highest counter that was sent
	sent    map[uint64]bool // counters of our own messages that the zone may hold
	fence   fence           // whether an earlier message may still take effect
	keep    time.Time       // keep the heartbeat until this time: a message that was sent when there was none may still arrive
	foreign *zone.Beat      // the heartbeat of another writer under our id
	written *zone.Beat      // sent together with a message that was accepted after the zone was read
}

// fence reports whether messages with an unknown result may still take effect. The next heartbeat bars them, because the heartbeat is a
// prerequisite of each message. Until then this writer may have written what is under the cluster's name.
type fence int

const (
	started    fence = iota + 1 // this process has sent no message, but its predecessor may have
	unanswered                  // a message got no answer
	barred                      // no such message is left
)

// outcome is what came of a message.
type outcome int

const (
	beatAccepted outcome = iota // with the heartbeat
	beatOutrun                  // with the heartbeat; its prerequisites were not met
	beatRefused                 // with the heartbeat, for another reason
	beatLost                    // with the heartbeat; no answer
	messageLost                 // any other message; no answer
	outcomes
)

// table is what an outcome does, in each state of the fence.
var table = [outcomes]struct {
	to              fence // 0: as before
	due, rest, keep bool  // which of the times begin
}{
	beatAccepted: {to: barred, due: true},
	beatRefused:  {rest: true},
	beatLost:     {to: unanswered, rest: true, keep: true},
	messageLost:  {to: unanswered, keep: true},
}

// part is what the zone and this process have of the cluster.
type part struct {
	there bool // the zone has a heartbeat of the cluster
	mine  bool // the zone has a host of the cluster
	wants bool // the cluster wants a host
	left  bool // it has left hosts and wants none
}

// on applies the outcome of a message.
func (b *beat) on(o outcome, z part, period time.Duration, now time.Time) {
	row := table[o]
	if row.to != 0 {
		b.fence = row.to
	}
	if row.due {
		b.sent, b.due = map[uint64]bool{b.counter: true}, now.Add(about(period))
	}
	if row.rest {
		b.rest = now.Add(about(min(period/4, 30*time.Second)))
	}
	if row.keep && !z.there {
		b.keep = now.Add(rfc2136.Fudge)
	}
}

// needed reports whether a message with only the heartbeat is due: a new one, or the deletion of one that has no use any more.
func (b *beat) needed(z part, now time.Time) bool {
	switch {
	case now.Before(b.rest):
		return false
	case b.fence == unanswered, b.fence == started && (z.there || z.mine):
		return true
	case z.mine, z.there && z.wants:
		return !now.Before(b.due)
	}
	return z.there && z.left && now.After(b.keep)
}

// late returns by how many periods the heartbeat is overdue. If a writer was suspended for long, others may be removing it. So its next
// change includes the heartbeat, which ends the removal.
func (b *beat) late(period time.Duration, now time.Time) float64 {
	if period == 0 || b.due.IsZero() {
		return 0
	}
	return float64(now.Sub(b.due)) / float64(period)
}
