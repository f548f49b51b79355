package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/internal/telemetry/scrape"
)

// Programs are the counts of runs of iptables' programs by result, and the time of all runs.
type Programs struct {
	OK, Failed, Locked uint64 // Locked ones did not get iptables' lock in time; they are not among the failed
	Time               time.Duration
}

// CollectPrograms exports the runs of iptables' programs at each scrape. Call it only if iptables is the back end.
func (m *Metrics) CollectPrograms(read func() Programs) {
	var s scrape.Set
	runs := s.Counter(namespace+"_iptables_runs_total",
		"Runs of iptables' programs on the host, by result; locked: another program kept the lock for too long.", "result")
	took := s.Counter(namespace+"_iptables_run_seconds_total", "Time that these runs took together, waiting for locks included.")
	m.Collect(s.Read(func(to chan<- prometheus.Metric) {
		p := read()
		runs.Send(to, float64(p.OK), "ok")
		runs.Send(to, float64(p.Failed), "failed")
		runs.Send(to, float64(p.Locked), "locked")
		took.Send(to, p.Time.Seconds())
	}))
}
