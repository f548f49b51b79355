package authoritative

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/neardns/neardns/fleet/zones/zone"
)

// lookPace is the longest time between two reads of a zone by an edge, unless the primary did not answer or a transfer took long.
const lookPace = 4 * time.Second

// heartbeats determines which clusters of a zone are silent: their heartbeats have not changed for zone.RemoveAfter of their periods
// while the primary answered. Addresses of a silent cluster without a health check count as unhealthy. If more than half of the clusters
// are silent, none counts as silent, because the clusters may be alive but cut off from the primary. The state is kept when the zone is
// compiled again.
type heartbeats struct {
	mu       sync.Mutex // guards the fields below
	watch    zone.Watch
	clusters map[string]*cluster
	silent   atomic.Int64 // number of silent clusters
}

// cluster is a Target for all addresses of a cluster that have no health check.
type cluster struct{ silent atomic.Bool }

// Well implements Target.
func (c *cluster) Well() bool { return !c.silent.Load() }

// of returns a cluster's Target.
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

// observe records heartbeats that the primary had at now, and returns the silent clusters.
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

// either is a Target that is healthy if one of two is, for an address that two clusters publish.
type either [2]Target

// Well implements Target.
func (e either) Well() bool { return e[0].Well() || e[1].Well() }
