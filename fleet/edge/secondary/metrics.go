package secondary

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const namespace = "neardns"

// Collector returns the metrics of the zones' copies and of configuration reloads. The zone label has the zones of the configuration, so
// there are few series.
func Collector(copies func() []*Copy, reloads *Reloads) prometheus.Collector {
	return collector{copies, reloads}
}

type collector struct {
	copies  func() []*Copy
	reloads *Reloads
}

// Reloads counts reloads of the configuration. The zero value is ready to use, and safe for concurrent use.
type Reloads struct {
	taken, refused atomic.Uint64
	stale          atomic.Bool // the last call of Count was with false
}

// Count records that a reload took a configuration over or refused it.
func (r *Reloads) Count(taken bool) {
	if taken {
		r.taken.Add(1)
	} else {
		r.refused.Add(1)
	}
	r.stale.Store(!taken)
}

func configDesc() *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_edge_config_ok", "1: the edge uses the current configuration. "+
		"0: it refused that and uses the one before, or it started without its geo.database.", nil, nil)
}

func reloadsDesc() *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_edge_reloads_total",
		"Reloads of the edge's configuration, the first right after its start: taken over, or refused, also without its geo.database.",
		[]string{"result"}, nil)
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_edge_"+name, help, append([]string{"zone"}, labels...), nil)
}

func serialDesc() *prometheus.Desc {
	return desc("zone_serial", "Serial of the zone as it is served; no series if it was never read.")
}

func ageDesc() *prometheus.Desc {
	return desc("zone_age_seconds", "Time since the primary last confirmed the zone as it is served; no series if it was never read.")
}

func recordsDesc() *prometheus.Desc {
	return desc("zone_records", "Number of the zone's records as it is served; 0 if it was never read and is not served.")
}

func transfersDesc() *prometheus.Desc {
	return desc("zone_transfers_total",
		"Transfers of the zone: the whole zone (full) or its changes (steps); failed: reads of the primary that ended with an error.", "result")
}

// Describe implements prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{serialDesc(), ageDesc(), recordsDesc(), transfersDesc(), reloadsDesc(), configDesc()} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	for result, n := range map[string]uint64{"taken": c.reloads.taken.Load(), "refused": c.reloads.refused.Load()} {
		ch <- prometheus.MustNewConstMetric(reloadsDesc(), prometheus.CounterValue, float64(n), result)
	}
	ok := 1.0
	if c.reloads.stale.Load() {
		ok = 0
	}
	ch <- prometheus.MustNewConstMetric(configDesc(), prometheus.GaugeValue, ok)
	for _, one := range c.copies() {
		s := one.State()
		ch <- prometheus.MustNewConstMetric(recordsDesc(), prometheus.GaugeValue, float64(s.Records), s.Zone)
		if s.Records > 0 {
			ch <- prometheus.MustNewConstMetric(serialDesc(), prometheus.GaugeValue, float64(s.Serial), s.Zone)
			ch <- prometheus.MustNewConstMetric(ageDesc(), prometheus.GaugeValue, max(0, time.Since(s.Current).Seconds()), s.Zone)
		}
		n := &one.counts
		for result, count := range map[string]*atomic.Uint64{"full": &n.full, "steps": &n.steps, "failed": &n.failed} {
			ch <- prometheus.MustNewConstMetric(transfersDesc(), prometheus.CounterValue, float64(count.Load()), s.Zone, result)
		}
	}
}
