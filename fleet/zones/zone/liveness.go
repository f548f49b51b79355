package zone

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"
)

// Periods of silence, by a cluster's own period, after which it is reported, and after which edges take its addresses to be down and the first of the other clusters may
// remove it.
const (
	ReportAfter = 3
	RemoveAfter = 6
)

// Watch times how long clusters' heartbeats have not changed, on the watcher's own monotonic clock: no clocks are compared. The zero
// value has seen nothing. It is for one goroutine.
type Watch struct {
	// Pace is the longest time from one look of the watcher's to the next, unless it was away. A shorter period of a cluster counts as that: a
	// watcher cannot see that a heartbeat is late which changes more often than the watcher looks.
	Pace time.Duration

	seen  map[string]*seen
	last  time.Time
	crowd time.Time // when more than a third of all clusters were silent last
}

type seen struct {
	beat  Beat
	since time.Time // when it was first seen as it is
}

// Observe notes a state that was the primary's at now.
func (w *Watch) Observe(s *State, now time.Time) {
	w.ObserveBeats(s.Beats, now)
	if w.crowded(s) {
		w.crowd = now
	}
}

// ObserveBeats notes the heartbeats that the primary had at now. A watcher that was away for longer than a cluster's period has not seen that
// cluster's silence, and times it from now on.
func (w *Watch) ObserveBeats(beats map[string]Beat, now time.Time) {
	if w.seen == nil {
		w.seen = map[string]*seen{}
	}
	for cluster, b := range beats {
		x := w.seen[cluster]
		if x == nil || x.beat != b || now.Sub(w.last) > w.period(b) {
			w.seen[cluster] = &seen{b, now}
		}
	}
	for cluster := range w.seen {
		if _, ok := beats[cluster]; !ok {
			delete(w.seen, cluster)
		}
	}
	w.last = now
}

// period is how often a cluster's heartbeat changes, or how often that is looked for.
func (w *Watch) period(b Beat) time.Duration { return max(b.Period, w.Pace) }

// crowded reports whether more than a third of all clusters are silent.
func (w *Watch) crowded(s *State) bool {
	clusters := map[string]bool{}
	for c := range w.seen {
		clusters[c] = true
	}
	for _, h := range s.Hosts {
		for _, o := range h.Owners {
			clusters[o] = true
		}
	}
	return 3*len(w.Dead(ReportAfter)) > len(clusters)
}

// Silent returns how long a cluster's heartbeat has not changed, and that in its periods; false for a cluster without one.
func (w *Watch) Silent(cluster string) (d time.Duration, periods float64, ok bool) {
	x := w.seen[cluster]
	if x == nil {
		return 0, 0, false
	}
	d = w.last.Sub(x.since)
	return d, float64(d) / float64(w.period(x.beat)), true
}

// Dead returns the clusters that have been silent for so many of their periods, sorted.
func (w *Watch) Dead(periods float64) []string {
	var dead []string
	for cluster := range w.seen {
		if _, n, _ := w.Silent(cluster); n >= periods {
			dead = append(dead, cluster)
		}
	}
	slices.Sort(dead)
	return dead
}

// Removable returns the dead clusters that me may remove from the state observed last. While more than a third of all clusters are silent it is
// none: then it is the network, or me. When that ends all have as much time as ever to come back, since some come sooner. It is none either
// unless my own heartbeat changed while the other one's did not. The survivors have an order for each dead cluster, and the one at place n waits
// n periods longer, so that one acts.
func (w *Watch) Removable(me string) []string {
	dead := w.Dead(ReportAfter)
	mine := w.seen[me]
	if w.crowd.Equal(w.last) || mine == nil || slices.Contains(dead, me) {
		return nil
	}
	var out []string
	for _, d := range dead {
		x := w.seen[d]
		if own, _, _ := w.Silent(me); !mine.since.After(x.since) || own > 2*w.period(mine.beat) {
			continue
		}
		_, silent, _ := w.Silent(d)
		if !w.crowd.IsZero() {
			silent = min(silent, float64(w.last.Sub(w.crowd))/float64(w.period(x.beat)))
		}
		if silent >= float64(RemoveAfter+w.place(d, me, dead)) {
			out = append(out, d)
		}
	}
	return out
}

// place is me's place in the rendezvous order of the survivors of a dead cluster.
func (w *Watch) place(dead, me string, all []string) int {
	n := 0
	for c := range w.seen {
		if !slices.Contains(all, c) && c != me && cmp.Or(cmp.Compare(score(dead, c), score(dead, me)), cmp.Compare(c, me)) > 0 {
			n++
		}
	}
	return n
}

func score(dead, survivor string) uint64 {
	sum := sha256.Sum256([]byte(dead + "/" + survivor))
	return binary.BigEndian.Uint64(sum[:])
}

// MayRemove reports whether a dead cluster's part of a host may go: the clusters that are not dead have an address there, or a target, and
// none of the dead one's own addresses works. Who cannot ask, as works is nil, leaves what has a health check.
func (h *Host) MayRemove(cluster string, dead []string, works func(Claim) bool) bool {
	c, ok := h.Claims[cluster]
	if !ok {
		return true // bookkeeping without a claim serves nobody
	}
	if works == nil && c.Health != nil || works != nil && works(c) {
		return false
	}
	for other, o := range h.Claims {
		if other == cluster || slices.Contains(dead, other) {
			continue
		}
		if o.Target != "" || slices.ContainsFunc(h.Addresses, func(a netip.Addr) bool { return slices.Contains(o.Addresses, a) }) {
			return true
		}
	}
	return false
}
