package authoritative

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/fleet/edge/loadbalance"
)

const answersHelp = "Queries of the edge, by its answer: geo, default, any and unhealthy: the addresses of a chosen cluster; " +
	"simple: those of all clusters; plain: everything else of a zone, except answers to ANY " +
	"(if a wildcard or CNAME leads to a host, the answer counts as plain and as its choice); " +
	"refused: no such zone, a transfer, a refused NOTIFY or a malformed client subnet; " +
	"limited: no answer, and slipped: an empty, truncated one, because the client's network sends too many queries over UDP."

// counts are the counters of queries. Their labels have fixed values: names of hosts and clusters would be visible to every client of the
// metrics endpoint.
type counts struct {
	chosen                                   [reasons]prometheus.Counter
	simple, plain, refused, limited, slipped prometheus.Counter
	all                                      *prometheus.CounterVec
}

func newCounts() *counts {
	c := &counts{all: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "neardns", Name: "edge_answers_total",
		Help: answersHelp}, []string{"reason"})}
	for _, r := range loadbalance.Reasons() {
		c.chosen[r] = c.all.WithLabelValues(r.String())
	}
	c.simple, c.plain, c.refused = c.all.WithLabelValues("simple"), c.all.WithLabelValues("plain"), c.all.WithLabelValues("refused")
	c.limited, c.slipped = c.all.WithLabelValues("limited"), c.all.WithLabelValues("slipped")
	return c
}

// Collector returns the plugin's metrics.
func (s *Server) Collector() prometheus.Collector { return collector{s} }

type collector struct{ *Server }

func ignoredDesc() *prometheus.Desc {
	return prometheus.NewDesc("neardns_edge_zone_ignored_records",
		"Records of the zone's bookkeeping (below _neardns) that are foreign or broken, and are ignored.", []string{"zone"}, nil)
}

func silentDesc() *prometheus.Desc {
	return prometheus.NewDesc("neardns_edge_silent_clusters",
		"Clusters of the zone that count as silent: heartbeat unchanged for six of its periods; 0 if over half would.", []string{"zone"}, nil)
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	c.counts.all.Describe(ch)
	ch <- ignoredDesc()
	ch <- silentDesc()
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	c.counts.all.Collect(ch)
	for origin, z := range c.zones.Load().by {
		if z != nil {
			ch <- prometheus.MustNewConstMetric(ignoredDesc(), prometheus.GaugeValue, float64(z.ignored), origin)
			ch <- prometheus.MustNewConstMetric(silentDesc(), prometheus.GaugeValue, float64(z.heartbeats.silent.Load()), origin)
		}
	}
}
