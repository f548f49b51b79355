package lifecycle

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/internal/telemetry/scrape"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// switchCounters returns a function that reads the packet counters of the host's rules. It opens the back end again each time, because a
// metrics scrape may come while the node's loop uses the agent's own.
func switchCounters(k rules.Kind) func() (map[string]steer.Counter, error) {
	return func() (map[string]steer.Counter, error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		host, err := k.Open(-1)
		if err != nil {
			return nil, err
		}
		defer host.Close() //nolint:errcheck // nothing was written
		return host.Counters()
	}
}

// programRuns exports the runs of the iptables programs by result, and the time of all runs. It is for the back end iptables only.
func programRuns(stats *iptables.Stats) prometheus.Collector {
	var s scrape.Set
	runs := s.Counter("neardns_iptables_runs_total",
		"Runs of iptables' programs on the host, by result; locked: another program kept the lock for too long.", "result")
	took := s.Counter("neardns_iptables_run_seconds_total", "Time that these runs took together, waiting for locks included.")
	return s.Read(func(to chan<- prometheus.Metric) {
		// A run is counted in the opposite order, so no difference is negative if one ends meanwhile.
		locked, failed := stats.Locked.Load(), stats.Failed.Load()
		runs.Send(to, float64(stats.Runs.Load()-failed), "ok")
		runs.Send(to, float64(failed-locked), "failed")
		runs.Send(to, float64(locked), "locked")
		took.Send(to, time.Duration(stats.Time.Load()).Seconds())
	})
}
