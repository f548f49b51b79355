package forward

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/rcode"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/internal/telemetry/scrape"
)

// counts are a server's counters.
type counts struct {
	results [reasons]atomic.Uint64 // tries, by their result
	opened  [2]atomic.Uint64       // connections opened: UDP, then TCP or TLS (see index)
	probes  atomic.Uint64          // queries that checked whether the failing server answers again

	durations sync.Once
	vec       *prometheus.HistogramVec
}

func index(stream bool) int {
	if stream {
		return 1
	}
	return 0
}

// observe records how long an answer took, in the histogram of CoreDNS's forward plugin.
func (s *server) observe(code int, took time.Duration) {
	c := &s.counts
	c.durations.Do(func() { c.vec = proxyDurations() })
	if c.vec != nil {
		c.vec.WithLabelValues("ask", s.name, rcode.ToString(code)).Observe(took.Seconds())
	}
}

// proxyDurations returns the histogram of CoreDNS's plugin/pkg/proxy, which does not export it: registering another with its name returns
// the existing one. It returns nil if the existing one has other labels or another help text.
func proxyDurations() *prometheus.HistogramVec {
	vec, err := scrape.Register(prometheus.DefaultRegisterer, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: plugin.Namespace, Subsystem: "proxy", Name: "request_duration_seconds",
		Buckets: plugin.TimeBuckets, NativeHistogramBucketFactor: plugin.NativeHistogramBucketFactor,
		Help: "Histogram of the time each request took.",
	}, []string{"proxy_name", "to", "rcode"}))
	if err != nil {
		return nil
	}
	return vec
}

// Collector returns a collector of all servers' counters. The label server has the server's address, always with the port.
func (ss *Servers) Collector() prometheus.Collector {
	const prefix = "neardns_upstream_"
	var set scrape.Set
	requests := set.Counter(prefix+"requests_total", "Queries to an upstream, by result; answered includes denials and truncated answers.",
		"server", "result")
	healthy := set.Gauge(prefix+"healthy", "Whether an upstream is tried in its turn (1), or last because it failed clients' queries (0).",
		"server")
	changes := set.Counter(prefix+"health_changes_total", "How often an upstream began to fail or answered again.", "server")
	probes := set.Counter(prefix+"probes_total", "Queries that check whether a failing upstream answers again.", "server")
	opened := set.Counter(prefix+"connections_opened_total", "Connections and sockets opened to an upstream.", "server", "protocol")
	hedged := set.Counter(prefix+"hedges_total", "Tries from the hedging budget: sent while another try of the query had no answer yet.")
	shed := set.Counter(prefix+"shed_total",
		"Queries that were not forwarded, because every upstream was dead and their client had its share of the queries that probe them.")
	resorted := set.Counter(prefix+"last_resort_total",
		"Queries answered by the last resort, because the upstreams before it failed or were slow.", "zone")
	loops := set.Gauge(prefix+"loop", "Whether an upstream leads back to this node (1) and is not used for the zone.", "server", "zone")
	return set.Read(func(to chan<- prometheus.Metric) {
		ss.mu.Lock()
		servers := slices.Collect(maps.Values(ss.byName))
		blocks := slices.Clone(ss.blocks)
		ss.mu.Unlock()
		for _, s := range servers {
			for r := range reasons {
				requests.Send(to, float64(s.counts.results[r].Load()), s.name, r.label())
			}
			healthy.Send(to, scrape.Bool(!s.health.failing.Load()), s.name)
			changes.Send(to, float64(s.health.changes.Load()), s.name)
			probes.Send(to, float64(s.counts.probes.Load()), s.name)
			opened.Send(to, float64(s.counts.opened[0].Load()), s.name, "udp")
			opened.Send(to, float64(s.counts.opened[1].Load()), s.name, "tcp")
		}
		hedged.Send(to, float64(ss.hedges.granted.Load()))
		shed.Send(to, float64(ss.shed.Load()))
		byZone, looped := map[string]uint64{}, map[[2]string]bool{}
		for _, b := range blocks {
			zone := b.zones[0]
			if b.first < len(b.list) {
				byZone[zone] += b.resorted.Load()
			}
			for i, s := range b.list {
				key := [2]string{s.name, zone}
				looped[key] = looped[key] || b.loops[i].Load()
			}
		}
		for zone, n := range byZone {
			resorted.Send(to, float64(n), zone)
		}
		for key, on := range looped {
			loops.Send(to, scrape.Bool(on), key[0], key[1])
		}
	})
}
