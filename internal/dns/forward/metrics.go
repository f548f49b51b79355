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

// counts is what is counted of one server.
type counts struct {
	results [reasons]atomic.Uint64
	opened  [2]atomic.Uint64 // connections, by protocol
	probes  atomic.Uint64

	observers [16]atomic.Pointer[prometheus.Observer] // by code; those above share the others' vector look-up
	durations sync.Once
	vec       *prometheus.HistogramVec
}

func index(stream bool) int {
	if stream {
		return 1
	}
	return 0
}

// observe puts the time of an answer where CoreDNS's forward plugin puts it.
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

// proxyDurations finds the vector of plugin/pkg/proxy, which does not export it: asking the registry for a vector of the
// same name hands out the one that is there. Nil: it has another shape than we know.
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

// collector gathers at each scrape what the servers have counted.
type collector struct {
	servers                                                            *Servers
	requests, healthy, changes, probes, opened, hedged, shed, resorted *prometheus.Desc
	loops                                                              *prometheus.Desc
}

// Collector exports the servers' counts. The label server has the values that the configuration names.
func (ss *Servers) Collector() prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("neardns_upstream_"+name, help, labels, nil)
	}
	return &collector{
		servers:  ss,
		requests: desc("requests_total", "Questions to an upstream, by what came of them; answered is a good answer, a denial included.", "server", "result"),
		healthy:  desc("healthy", "Whether an upstream is asked in its turn (1), or last because it failed real questions (0).", "server"),
		changes:  desc("health_changes_total", "How often an upstream began to fail or answered again.", "server"),
		probes:   desc("probes_total", "Questions to a failing upstream in the background, to see whether it answers again.", "server"),
		opened:   desc("connections_opened_total", "Connections and sockets opened to an upstream.", "server", "protocol"),
		hedged:   desc("hedges_total", "Questions asked a second time beside one that had no answer yet."),
		shed:     desc("shed_total", "Questions that were not asked, because every upstream was dead and their source had its share of those that try."),
		resorted: desc("last_resort_total", "Questions answered by the cluster DNS address because the upstreams before it failed.", "zone"),
		loops:    desc("loop", "Whether an upstream leads back to this node (1) and is not asked for the zone.", "server", "zone"),
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
