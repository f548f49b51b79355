package zonewriter

import (
	"time"

	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/fleet/zones/zone"
)

// beat is the state of this cluster's own heartbeat in the zone, and decides when to send it. It reads no clock: callers pass the time.
type beat struct {
	due time.Time // the time at which the next heartbeat is due
	// after a failed heartbeat: needed returns false before this time
	rest    time.Time
	counter uint64 // the counter of the heartbeat that was sent last, the highest; 0: this process has sent none
	fence   fence  // whether an earlier message may still take effect
	// do not delete the heartbeat before this time: a message that was sent when the zone had none may still arrive
	keep    time.Time
	foreign *zone.Beat // another writer under this cluster's ID: its heartbeat, or only the Instance of its claim; nil if there is none
	written *zone.Beat // the heartbeat that the server has accepted, together with a host's change, since the zone was read; nil: none
}

// fence is whether messages with an unknown result may still take effect. Each message has the current heartbeat as a prerequisite, so the
// server refuses all earlier messages as soon as a new heartbeat is in the zone. Until then, a claim under this cluster's ID may come from
// an earlier message.
type fence int

const (
	started    fence = iota + 1 // no heartbeat of this process was accepted yet; messages of its predecessor may still take effect
	unanswered                  // a message got no usable answer, so that message may still take effect
	barred                      // no earlier message can take effect any more; also the state if heartbeats are off
)

// outcome is the result of a message, as far as it matters for the heartbeat. The deletion of a heartbeat counts as a heartbeat.
type outcome int

const (
	beatAccepted outcome = iota // a message with a heartbeat was accepted
	beatOutrun                  // a message with only a heartbeat failed because of its prerequisites; changes nothing in beat
	beatRefused                 // a message with only a heartbeat failed for another reason
	beatLost                    // a message with only a heartbeat got no usable answer
	messageLost                 // a message with hosts' changes got no usable answer
	outcomes
)

// table has, by outcome, what that outcome changes in beat.
var table = [outcomes]struct {
	to              fence // the new state of the fence; 0: unchanged
	due, rest, keep bool  // which of the fields of beat with these names are set; keep only if the zone has no heartbeat
}{
	beatAccepted: {to: barred, due: true},
	beatRefused:  {rest: true},
	beatLost:     {to: unanswered, rest: true, keep: true},
	messageLost:  {to: unanswered, keep: true},
}

// part is what the zone has of this cluster, and what this process wants to publish.
type part struct {
	there bool // the zone has a heartbeat of this cluster
	mine  bool // the zone has records of this cluster for at least one host
	wants bool // at least one host is to be published
	left  bool // hosts were passed to Remove, and none is to be published
}

// on applies the outcome of a message to the heartbeat's state.
func (b *beat) on(o outcome, z part, period time.Duration, now time.Time) {
	row := table[o]
	if row.to != 0 {
		b.fence = row.to
	}
	if row.due {
		b.due = now.Add(about(period))
	}
	if row.rest {
		b.rest = now.Add(about(min(period/4, 30*time.Second)))
	}
	if row.keep && !z.there {
		b.keep = now.Add(rfc2136.Fudge)
	}
}

// needed reports whether to send a message with only a heartbeat: a new heartbeat, or the deletion of one that is no longer needed.
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

// late returns by how many periods the heartbeat is overdue, for example because the process was suspended; a negative number if the
// heartbeat is not due yet. Other clusters may already be removing a cluster whose heartbeat is late, so its next change includes a
// heartbeat, which stops them.
func (b *beat) late(period time.Duration, now time.Time) float64 {
	if period == 0 || b.due.IsZero() {
		return 0
	}
	return float64(now.Sub(b.due)) / float64(period)
}
