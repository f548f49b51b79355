package zone

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"
)

// ReportAfter and RemoveAfter are numbers of heartbeat periods without a new heartbeat. After ReportAfter, a cluster is reported as silent.
// After RemoveAfter, edges may treat those of its addresses that no health check probes as unhealthy, and one of the other clusters may
// remove its records.
const (
	ReportAfter = 3
	RemoveAfter = 6
)

// Watch measures for how long each cluster's heartbeat has not changed. It compares only the times that its caller passes, so clocks of
// different clusters do not matter. The zero value is ready to use. Its methods are for one goroutine.
type Watch struct {
	// Pace is the longest time between two reads of the zone. It replaces the heartbeat period of a cluster whose period is shorter,
	// because such a heartbeat cannot be seen to change more often than the zone is read.
	Pace time.Duration

	seen  map[string]*seen
	last  time.Time
	crowd time.Time // time of the last observation in which more than a third of all clusters were silent; zero: none
}

type seen struct {
	beat  Beat
	since time.Time // when this heartbeat was first seen, or seen again after a gap between observations
}

// Observe records the heartbeats in the zone at the time now, and whether more than a third of all clusters are silent.
func (w *Watch) Observe(s *State, now time.Time) {
	w.ObserveBeats(s.Beats, now)
	if w.crowded(s) {
		w.crowd = now
	}
}

// ObserveBeats records the heartbeats in the zone at the time now. If the last observation is longer ago than a cluster's period (or Pace,
// if that is longer), that cluster's silence is measured from now on, because nothing is known about the time between.
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

// period is the time within which the observer must see a live cluster's heartbeat change: the cluster's own period, or Pace if that is
// longer.
func (w *Watch) period(b Beat) time.Duration { return max(b.Period, w.Pace) }

// crowded reports whether more than a third of all clusters in the zone are silent.
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

// Silent returns for how long a cluster's heartbeat had not changed at the last observation, as a duration and as a number of
// periods (see period). ok is false if the cluster has no heartbeat.
func (w *Watch) Silent(cluster string) (d time.Duration, periods float64, ok bool) {
	x := w.seen[cluster]
	if x == nil {
		return 0, 0, false
	}
	d = w.last.Sub(x.since)
	return d, float64(d) / float64(w.period(x.beat)), true
}

// Dead returns, sorted, the clusters whose heartbeat has not changed for at least the given number of periods (see period).
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

// Removable returns the dead clusters whose records the cluster me may remove now.
//
// It returns none while more than a third of all clusters are silent, because then the cause is probably the network or this cluster
// itself. After such a time, every dead cluster gets the full RemoveAfter periods again to come back. A dead cluster is removable only
// if me's own heartbeat has changed in the zone since the dead cluster's last change, and within the last two of me's periods. So that
// only one cluster acts, the live clusters are ranked for each dead one, and the cluster of rank n (from 0) waits n periods longer.
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

// place returns the rank, from 0, of the cluster me among the live clusters, by rendezvous hashing with one dead cluster. all are the
// clusters that are not live.
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

// MayRemove reports whether a dead cluster's records of this host may be removed. They may if the dead cluster has no claim there, or if a
// live cluster has an address or a target at the host and works returns false for the dead cluster's claim. If works is nil, a claim with
// a health check counts as working, and one without as not working.
func (h *Host) MayRemove(cluster string, dead []string, works func(Claim) bool) bool {
	c, ok := h.Claims[cluster]
	if !ok {
		return true // without its claim, the cluster's other records of the host are leftovers
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
