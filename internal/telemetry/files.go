package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// CollectSnapshot exports the last time at which the cache's snapshot was known to match the cache.
func (m *Metrics) CollectSnapshot(fresh func() time.Time) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Name: "cache_snapshot_timestamp_seconds",
		Help: "When the cache's snapshot was last known to hold what the cache holds; at first, when the agent began to keep it."},
		func() float64 { return seconds(fresh()) }))
}

// Watch is what the watch over the network's configuration saw when it last looked.
type Watch struct {
	OK, Fighting bool
	Repairs      int
	Restored     int64 // the host's rules, put back while no agent did
	Looked       time.Time
}

// CollectWatch exports the watch's state at each scrape. If there is no watch, read returns that, and nothing is exported.
func (m *Metrics) CollectWatch(read func() (Watch, bool)) {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, nil, nil)
	}
	m.registry.MustRegister(&watchCollector{read: read,
		ok: desc("neardns_conflist_ok", "Whether the watch found plugin and conflist entry on the node, or put them there, when it "+
			"last looked (1), or could not (0)."),
		fighting: desc("neardns_conflist_fighting", "Whether another program keeps taking the conflist entry out, so that the watch rests "+
			"between its tries (1)."),
		repairs: desc("neardns_conflist_repairs_total", "How often the watch had to put an unchanged conflist entry back since it began."),
		restored: desc("neardns_switch_restored_total", "How often the watch found the host's rules gone with no agent that mends them, "+
			"and put them back, since it began."),
		looked: desc("neardns_conflist_looked_timestamp_seconds", "When the watch last looked at the network's configuration."),
	})
}

type watchCollector struct {
	read                                    func() (Watch, bool)
	ok, fighting, repairs, restored, looked *prometheus.Desc
}

func (c *watchCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.ok, c.fighting, c.repairs, c.restored, c.looked} {
		ch <- d
	}
}

func (c *watchCollector) Collect(ch chan<- prometheus.Metric) {
	w, ok := c.read()
	if !ok {
		return
	}
	ch <- prometheus.MustNewConstMetric(c.ok, prometheus.GaugeValue, truth(w.OK))
	ch <- prometheus.MustNewConstMetric(c.fighting, prometheus.GaugeValue, truth(w.Fighting))
	ch <- prometheus.MustNewConstMetric(c.repairs, prometheus.CounterValue, float64(w.Repairs))
	ch <- prometheus.MustNewConstMetric(c.restored, prometheus.CounterValue, float64(w.Restored))
	ch <- prometheus.MustNewConstMetric(c.looked, prometheus.GaugeValue, seconds(w.Looked))
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// seconds is a time as Prometheus has it.
func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1e3 }
