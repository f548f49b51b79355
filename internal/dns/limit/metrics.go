package limit

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/internal/telemetry/scrape"
)

// Values of the label reason, by reason.
var reasonNames = [reasons]string{full: "full", share: "share"}

// Collector returns a collector of the gate's counters. It reads them at each scrape, so it costs queries nothing.
func (g *Gate) Collector() prometheus.Collector {
	var s scrape.Set
	inFlight := s.Gauge("neardns_misses_in_flight", "Queries in flight to upstreams.")
	limit := s.Gauge("neardns_misses_in_flight_limit", "The most queries in flight to upstreams at one time (limits.misses).")
	shed := s.Counter("neardns_misses_shed_total",
		"Misses that were not forwarded, by reason: full (the limit was reached) or share (the client had its fair share in flight).", "reason")
	return s.Read(func(to chan<- prometheus.Metric) {
		now, most := g.counts()
		inFlight.Send(to, float64(now))
		limit.Send(to, float64(most))
		for why, name := range reasonNames {
			shed.Send(to, float64(g.shed[why].Load()), name)
		}
	})
}
