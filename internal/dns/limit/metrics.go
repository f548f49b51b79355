package limit

import "github.com/prometheus/client_golang/prometheus"

// Values of the label reason, by reason.
var reasonNames = [reasons]string{full: "full", share: "share"}

// Collector exports the gate's counters. It reads them at each scrape and costs a query nothing.
func (g *Gate) Collector() prometheus.Collector {
	return &collector{gate: g,
		inFlight: prometheus.NewDesc("neardns_misses_in_flight",
			"Queries in flight to upstreams.", nil, nil),
		limit: prometheus.NewDesc("neardns_misses_in_flight_limit",
			"The most queries in flight to upstreams at one time (limits.misses).", nil, nil),
		shed: prometheus.NewDesc("neardns_misses_shed_total",
			"Misses that were not forwarded, by reason: full (the limit was reached) or share (the client had its fair share in flight).",
			[]string{"reason"}, nil)}
}

type collector struct {
	gate                  *Gate
	inFlight, limit, shed *prometheus.Desc
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.inFlight
	ch <- c.limit
	ch <- c.shed
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(c.inFlight, prometheus.GaugeValue, float64(c.gate.inFlight()))
	ch <- prometheus.MustNewConstMetric(c.limit, prometheus.GaugeValue, float64(c.gate.limit.Load()))
	for why, name := range reasonNames {
		ch <- prometheus.MustNewConstMetric(c.shed, prometheus.CounterValue, float64(c.gate.shed[why].Load()), name)
	}
}
