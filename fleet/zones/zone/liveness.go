package zone

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"
)

// ReportAfter and RemoveAfter count missed heartbeat periods of a cluster. After ReportAfter the cluster is reported as silent. After
// RemoveAfter edges treat its addresses as unhealthy, and the first of the other clusters may remove it.
const (
	ReportAfter = 3
	RemoveAfter = 6
)

// Watch measures how long each cluster's heartbeat has not changed. It uses the watcher's own monotonic clock, so the clocks of clusters
// are never compared. The zero value is ready to use. Watch is for one goroutine.
type Watch struct {
	// Pace is the longest time between two observations while the watcher runs. A cluster's period that is shorter counts as Pace,
	// because a watcher cannot see that a heartbeat is late if it changes more often than the watcher looks.
	Pace time.Duration

	seen  map[string]*seen
	last  time.Time
	crowd time.Time // the last time when more than a third of all clusters were silent
}

type seen struct {
	beat  Beat
	since time.Time // when this heartbeat was first seen
}

// Observe records a state that the primary had at now.
func (w *Watch) Observe(s *State, now time.Time) {
	w.ObserveBeats(s.Beats, now)
	if w.crowded(s) {
		w.crowd = now
	}
}

// ObserveBeats records the heartbeats that the primary had at now. If the watcher was away for longer than a cluster's period, it has not
// seen that cluster's silence, so it starts to measure it now.
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

// period is the time in which a living cluster's heartbeat changes at least once, as we see it: its own period, or that of our reads if it
// is longer.
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

// Silent returns how long a cluster's heartbeat has not changed, as a duration and as a number of the cluster's periods. ok is false if
// the cluster has no heartbeat.
func (w *Watch) Silent(cluster string) (d time.Duration, periods float64, ok bool) {
	x := w.seen[cluster]
	if x == nil {
		return 0, 0, false
	}
	d = w.last.Sub(x.since)
	return d, float64(d) / float64(w.period(x.beat)), true
}

// Dead returns the clusters that have been silent for at least the given number of their periods, sorted.
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

// Removable returns the dead clusters that cluster me may remove from the state observed last. It returns none while more than a third of
// all clusters are silent: then the network is the likely cause, or this cluster. When that ends, every dead cluster gets the full time
// again to return, because some return later than others. A dead cluster is removable only if my own heartbeat changed while its
// heartbeat did not. The survivors are ordered for each dead cluster, and the one at rank n waits n periods longer, so that only one
// acts.
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

// place returns me's rank in the rendezvous order of the survivors of a dead cluster.
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

// MayRemove reports whether a dead cluster's part of a host may be removed: a cluster that is not dead has an address at the host, or a
// target, and none of the dead cluster's own addresses works. If works is nil, a part that has a health check stays.
func (h *Host) MayRemove(cluster string, dead []string, works func(Claim) bool) bool {
	c, ok := h.Claims[cluster]
	if !ok {
		return true // bookkeeping without a claim serves no client
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
