package healthcheck

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"
)

const namespace = "neardns"

// Collector returns the checker's metrics.
func (c *Checker) Collector() prometheus.Collector { return collector{c} }

type collector struct{ *Checker }

func targetsDesc() *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_edge_targets", "Targets of health checks, by state: well; sick (failed three times in a row); "+
		"unknown (not probed yet, treated as healthy); "+
		"refused (not probed, healthy unless its cluster is silent: outside of the zone's target ranges, invalid, or too many).",
		[]string{"state"}, nil)
}

func probesDesc() *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_edge_probes_total", "Health check probes of addresses, by result.", []string{"result"}, nil)
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- targetsDesc()
	ch <- probesDesc()
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	for state, n := range c.Counts() {
		ch <- prometheus.MustNewConstMetric(targetsDesc(), prometheus.GaugeValue, float64(n), state)
	}
	ch <- prometheus.MustNewConstMetric(probesDesc(), prometheus.CounterValue, float64(c.ok.Load()), "ok")
	ch <- prometheus.MustNewConstMetric(probesDesc(), prometheus.CounterValue, float64(c.bad.Load()), "failed")
}

// Counts returns the number of targets in each state: well (healthy), sick (unhealthy), unknown (not probed yet), refused (they get no
// probe).
func (c *Checker) Counts() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]int{"well": 0, "sick": 0, "unknown": 0, "refused": 0}
	for _, t := range c.running {
		switch {
		case !t.asked.Load():
			out["unknown"]++
		case t.sick.Load():
			out["sick"]++
		default:
			out["well"]++
		}
	}
	for _, n := range c.skipped {
		out["refused"] += n.refused
	}
	wanted := map[Check]bool{}
	for _, set := range c.wanted {
		maps.Copy(wanted, set)
	}
	out["refused"] += len(wanted) - len(c.running)
	return out
}
