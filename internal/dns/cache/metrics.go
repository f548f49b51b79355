package cache

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/telemetry/scrape"
)

// Metrics are the metrics of CoreDNS's own cache, with the same names and labels, and two about the store's memory. One Metrics is enough
// for a process.
type Metrics struct {
	store *answers.Store

	requests, misses, prefetches, drops, stale *prometheus.CounterVec
	hits, evictions                            *prometheus.CounterVec
	entries, bytes, limit                      scrape.Metric
	err                                        error

	mu     sync.Mutex // guards the field below
	serves []*Cache
}

var classNames = [2]string{"success", "denial"} // by answers.Class

// NewMetrics registers the metrics with reg; nil: Prometheus's default registry, where CoreDNS's are. It uses counters that are
// registered already. If the registry refuses a metric, every Setup fails with its error.
func NewMetrics(store *answers.Store, reg prometheus.Registerer) *Metrics {
	if reg == nil {
		reg = prometheus.DefaultRegisterer
	}
	m := &Metrics{store: store}
	where := []string{"server", "zones", "view"}
	class := []string{"server", "type", "zones", "view"}
	var errs []error
	counter := func(name, help string, labels []string) *prometheus.CounterVec {
		v, err := scrape.Register(reg, prometheus.NewCounterVec(
			prometheus.CounterOpts{Namespace: plugin.Namespace, Subsystem: "cache", Name: name, Help: help}, labels))
		errs = append(errs, err)
		return v
	}
	// The help texts are CoreDNS's, because a registry refuses two metrics of one name with different help texts.
	m.requests = counter("requests_total", "The count of cache requests.", where)
	m.hits = counter("hits_total", "The count of cache hits.", class)
	m.misses = counter("misses_total", "The count of cache misses. Deprecated, derive misses from cache hits/requests counters.", where)
	m.prefetches = counter("prefetch_total", "The number of times the cache has prefetched a cached item.", where)
	m.drops = counter("drops_total", "The number responses that are not cached, because the reply is malformed.", where)
	m.stale = counter("served_stale_total", "The number of requests served from stale cache entries.", where)
	m.evictions = counter("evictions_total", "The count of cache evictions.", class)
	var set scrape.Set
	m.entries = set.Gauge("coredns_cache_entries", "The number of elements in the cache.", class...)
	m.bytes = set.Gauge("neardns_cache_bytes", "Memory that the cache takes, its bookkeeping for each entry included.")
	m.limit = set.Gauge("neardns_cache_limit_bytes", "Memory that the cache may take.")
	_, err := scrape.Register(reg, set.Read(m.collect)) // only tests have another server in this process, which has registered one
	m.err = errors.Join(append(errs, err)...)
	return m
}

func (m *Metrics) collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	serves := slices.Clone(m.serves)
	m.mu.Unlock()
	seen := map[string]bool{} // during a reload, two configurations may have the same labels; the newer one counts
	for _, c := range slices.Backward(serves) {
		for server := range c.series.All() {
			labels := []string{addr(server), "", strings.Join(c.zones, ","), ""}
			if id := strings.Join(labels, " "); seen[id] {
				continue
			} else {
				seen[id] = true
			}
			for class, name := range classNames {
				labels[1] = name
				m.entries.Send(to, float64(c.space.Len(answers.Class(class))), labels...)
			}
		}
	}
	now, limit := m.store.Bytes()
	m.bytes.Send(to, float64(now))
	m.limit.Send(to, float64(limit))
}

func (m *Metrics) add(c *Cache) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serves = append(m.serves, c)
}

func (m *Metrics) remove(c *Cache) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serves = slices.DeleteFunc(m.serves, func(o *Cache) bool { return o == c })
}

// addr returns the label server of a block's counters at one address.
func addr(server *dnsserver.Server) string {
	if server == nil {
		return ""
	}
	return server.Addr
}

// series are the counters of one block at one address. Their label view is empty: the plugin view is not linked.
type series struct {
	server *dnsserver.Server

	requests, misses, prefetches, drops, stale prometheus.Counter
	hits, evictions                            [2]prometheus.Counter
}

func (c *Cache) find(ctx context.Context) *series {
	server, _ := ctx.Value(dnsserver.Key{}).(*dnsserver.Server)
	return c.series.Get(server, c.newSeries)
}

func (c *Cache) newSeries(server *dnsserver.Server) *series {
	m, zones := c.metrics, strings.Join(c.zones, ",")
	one := func(v *prometheus.CounterVec) prometheus.Counter { return v.WithLabelValues(addr(server), zones, "") }
	two := func(v *prometheus.CounterVec) (out [2]prometheus.Counter) {
		for class, name := range classNames {
			out[class] = v.WithLabelValues(addr(server), name, zones, "")
		}
		return out
	}
	return &series{
		server:   server,
		requests: one(m.requests), misses: one(m.misses), prefetches: one(m.prefetches), drops: one(m.drops), stale: one(m.stale),
		hits: two(m.hits), evictions: two(m.evictions),
	}
}
