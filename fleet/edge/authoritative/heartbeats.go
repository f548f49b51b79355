package authoritative

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/neardns/neardns/fleet/zones/zone"
)

// lookPace is the longest time between two reads of a zone by an edge, if the primary answers and no transfer takes long.
const lookPace = 4 * time.Second

// heartbeats decides which clusters of a zone are silent: those whose heartbeats have not changed for zone.RemoveAfter of their periods
// although the primary answered. Addresses of a silent cluster count as unhealthy, unless they are probed by a health check. If more than
// half of the heartbeats have stopped, no cluster counts as silent, because the clusters are probably alive and cut off from the primary.
// The state is kept when the zone's records change.
type heartbeats struct {
	mu       sync.Mutex // guards watch and clusters
	watch    zone.Watch
	clusters map[string]*cluster // by cluster ID
	silent   atomic.Int64        // number of silent clusters
}

// cluster is the Target of all addresses of one cluster that no health check probes: they are healthy unless the cluster is silent.
type cluster struct{ silent atomic.Bool }

// Well implements Target.
func (c *cluster) Well() bool { return !c.silent.Load() }

// of returns the Target of the cluster with the ID name, and makes it if there is none yet.
func (h *heartbeats) of(name string) *cluster {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.clusters[name]
	if c == nil {
		c = new(cluster)
		if h.clusters == nil {
			h.clusters = map[string]*cluster{}
		}
		h.clusters[name] = c
	}
	return c
}

// observe records the heartbeats in the zone at the time now, and returns the silent clusters.
func (h *heartbeats) observe(beats map[string]zone.Beat, now time.Time) (silent []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watch.Pace = lookPace
	h.watch.ObserveBeats(beats, now)
	if silent = h.watch.Dead(zone.RemoveAfter); 2*len(silent) > len(beats) {
		silent = nil
	}
	h.silent.Store(int64(len(silent)))
	for name, c := range h.clusters {
		c.silent.Store(slices.Contains(silent, name))
	}
	return silent
}

// either is the Target of an address that two or more clusters publish and that no health check probes: the address is healthy if one of
// the clusters is not silent. For more than two clusters, one of the Targets is itself an either.
type either [2]Target

// Well implements Target.
func (e either) Well() bool { return e[0].Well() || e[1].Well() }
