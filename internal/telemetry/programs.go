package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Programs is how often other programs were run, by what came of it, and the time that took them together.
type Programs struct {
	OK, Failed, Locked uint64 // Locked ones did not get iptables' lock in time; they are not among the failed
	Time               time.Duration
}

// CollectPrograms exports the runs of iptables, where that is the back end.
func (m *Metrics) CollectPrograms(read func() Programs) {
	m.registry.MustRegister(&programs{read: read,
		runs: prometheus.NewDesc(namespace+"_iptables_runs_total",
			"Runs of iptables' programs on the host, by what came of them; locked: another program kept the lock for too long.",
			[]string{"result"}, nil),
		time: prometheus.NewDesc(namespace+"_iptables_run_seconds_total",
			"Time that these runs took together, waiting for locks included.", nil, nil)})
}

type programs struct {
	read       func() Programs
	runs, time *prometheus.Desc
}

func (c *programs) Describe(ch chan<- *prometheus.Desc) { ch <- c.runs; ch <- c.time }

func (c *programs) Collect(ch chan<- prometheus.Metric) {
	p := c.read()
	for result, n := range map[string]uint64{"ok": p.OK, "failed": p.Failed, "locked": p.Locked} {
		ch <- prometheus.MustNewConstMetric(c.runs, prometheus.CounterValue, float64(n), result)
	}
	ch <- prometheus.MustNewConstMetric(c.time, prometheus.CounterValue, p.Time.Seconds())
}
