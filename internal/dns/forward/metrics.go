package forward

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/rcode"
	"github.com/prometheus/client_golang/prometheus"
)

// counts are a server's counters.
type counts struct {
	results [reasons]atomic.Uint64
	opened  [2]atomic.Uint64 // connections, by protocol
	probes  atomic.Uint64

	observers [16]atomic.Pointer[prometheus.Observer] // by response code; higher codes use a look-up in vec
	durations sync.Once
	vec       *prometheus.HistogramVec
}

func index(stream bool) int {
	if stream {
		return 1
	}
	return 0
}

// observe records an answer's time in the same histogram as CoreDNS's forward plugin.
func (s *server) observe(code int, took time.Duration) {
	c := &s.counts
	if code < len(c.observers) {
		if o := c.observers[code].Load(); o != nil {
			(*o).Observe(took.Seconds())
			return
		}
	}
	c.durations.Do(func() { c.vec = proxyDurations() })
	if c.vec == nil {
		return
	}
	o := c.vec.WithLabelValues("ask", s.name, rcode.ToString(code))
	if code < len(c.observers) {
		c.observers[code].Store(&o)
	}
	o.Observe(took.Seconds())
}

// proxyDurations finds the vector of plugin/pkg/proxy, which does not export it: registering a vector of the same name returns the existing
// one. It returns nil if the existing one has other labels.
func proxyDurations() *prometheus.HistogramVec {
	vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: plugin.Namespace, Subsystem: "proxy", Name: "request_duration_seconds",
		Buckets: plugin.TimeBuckets, NativeHistogramBucketFactor: plugin.NativeHistogramBucketFactor,
		Help: "Histogram of the time each request took.",
	}, []string{"proxy_name", "to", "rcode"})
	err := prometheus.Register(vec)
	if err == nil {
		return vec
	}
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		if existing, ok := there.ExistingCollector.(*prometheus.HistogramVec); ok {
			return existing
		}
	}
	return nil
}

// collector reads the servers' counters at each scrape.
type collector struct {
	servers                                                            *Servers
	requests, healthy, changes, probes, opened, hedged, shed, resorted *prometheus.Desc
	loops                                                              *prometheus.Desc
}

// Collector exports the servers' counters. The label server has the servers' names from the configuration.
func (ss *Servers) Collector() prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("neardns_upstream_"+name, help, labels, nil)
	}
	return &collector{
		servers:  ss,
		requests: desc("requests_total", "Queries to an upstream, by result; answered is a good answer, including a denial.", "server", "result"),
		healthy:  desc("healthy", "Whether an upstream is tried in its turn (1), or last because it failed clients' queries (0).", "server"),
		changes:  desc("health_changes_total", "How often an upstream began to fail or answered again.", "server"),
		probes:   desc("probes_total", "Queries that check whether a failing upstream answers again.", "server"),
		opened:   desc("connections_opened_total", "Connections and sockets opened to an upstream.", "server", "protocol"),
		hedged:   desc("hedges_total", "Queries sent a second time while the first had no answer yet."),
		shed: desc("shed_total", "Queries that were not forwarded, because every upstream was dead and their client had its share "+
			"of the queries that probe them."),
		resorted: desc("last_resort_total", "Queries answered by the cluster DNS address because the upstreams before it failed.", "zone"),
		loops:    desc("loop", "Whether an upstream leads back to this node (1) and is not used for the zone.", "server", "zone"),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.requests, c.healthy, c.changes, c.probes, c.opened, c.hedged, c.shed, c.resorted, c.loops} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, on bool, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(index(on)), labels...)
	}
	c.servers.mu.Lock()
	servers := make([]*server, 0, len(c.servers.byName))
	for _, s := range c.servers.byName {
		servers = append(servers, s)
	}
	blocks := slices.Clone(c.servers.blocks)
	c.servers.mu.Unlock()
	for _, s := range servers {
		for r := range reasons {
			counter(c.requests, s.counts.results[r].Load(), s.name, r.label())
		}
		gauge(c.healthy, !s.health.failing.Load(), s.name)
		counter(c.changes, s.health.changes.Load(), s.name)
		counter(c.probes, s.counts.probes.Load(), s.name)
		counter(c.opened, s.counts.opened[0].Load(), s.name, "udp")
		counter(c.opened, s.counts.opened[1].Load(), s.name, "tcp")
	}
	counter(c.hedged, uint64(c.servers.hedges.granted.Load()))
	counter(c.shed, c.servers.shed.Load())
	resorted, loops := map[string]uint64{}, map[[2]string]bool{}
	for _, a := range blocks {
		zone := a.zones[0]
		if a.first < len(a.list) {
			resorted[zone] += a.resorted.Load()
		}
		for i, s := range a.list {
			key := [2]string{s.name, zone}
			loops[key] = loops[key] || a.loops[i].Load()
		}
	}
	for zone, n := range resorted {
		counter(c.resorted, n, zone)
	}
	for key, on := range loops {
		gauge(c.loops, on, key[0], key[1])
	}
}
