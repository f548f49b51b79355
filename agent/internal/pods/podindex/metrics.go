package podindex

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/internal/telemetry/scrape"
)

// NamespaceCollector exports the counts of each namespace at each scrape, and calls update before.
func (c *Clients) NamespaceCollector(update func()) prometheus.Collector {
	var s scrape.Set
	queries := s.Counter("neardns_namespace_queries_total", "Queries of this node's pods, by namespace.", "namespace")
	hits := s.Counter("neardns_namespace_hits_total", "Of these, answered from the cache.", "namespace")
	kernel := s.Counter("neardns_namespace_kernel_hits_total", "Of these, answered in the kernel.", "namespace")
	failures := s.Counter("neardns_namespace_failures_total",
		"Of the queries, answered with a failure: neither an answer nor that there is no such name.", "namespace")
	return s.Read(func(to chan<- prometheus.Metric) {
		update()
		for name, n := range c.namespaceCounts() {
			queries.Send(to, float64(n.Queries), name)
			hits.Send(to, float64(n.Hits), name)
			kernel.Send(to, float64(n.Kernel), name)
			failures.Send(to, float64(n.Failures), name)
		}
	})
}
