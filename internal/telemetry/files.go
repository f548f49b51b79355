package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/internal/telemetry/scrape"
	"github.com/neardns/neardns/pkg/nodestate"
)

// CollectSnapshot exports the last time at which the cache's snapshot was known to match the cache.
func (m *Metrics) CollectSnapshot(fresh func() time.Time) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Name: "cache_snapshot_timestamp_seconds",
		Help: "When the cache's snapshot file last matched the cache; at first, when the agent began to keep it."},
		func() float64 { return seconds(fresh()) }))
}

// CollectWatch exports the state of the watch of the CNI configuration at each scrape. It exports nothing if there is no watch, for which
// read returns false, or if the state cannot be read, because the watch soon writes it again.
func (m *Metrics) CollectWatch(read func() (nodestate.Watch, bool, error)) {
	var s scrape.Set
	ok := s.Gauge("neardns_conflist_ok", "Whether the watch found plugin and conflist entry on the node, or put them there, when it "+
		"last looked (1), or could not (0).")
	fighting := s.Gauge("neardns_conflist_fighting", "Whether another program keeps removing the conflist entry, so that repairs are less "+
		"frequent (1).")
	repairs := s.Counter("neardns_conflist_repairs_total", "How often the watch had to put an unchanged conflist entry back since it began.")
	restored := s.Counter("neardns_switch_restored_total",
		"How often the watch restored the host's rules because no agent did, since it began.")
	looked := s.Gauge("neardns_conflist_looked_timestamp_seconds", "When the watch last looked at the network's configuration.")
	m.Collect(s.Read(func(to chan<- prometheus.Metric) {
		w, there, err := read()
		if !there || err != nil {
			return
		}
		ok.Send(to, scrape.Bool(w.OK))
		fighting.Send(to, scrape.Bool(w.Fighting))
		repairs.Send(to, float64(w.Repairs))
		restored.Send(to, float64(w.Restored))
		looked.Send(to, seconds(w.Looked))
	}))
}

// seconds returns a time as Prometheus has it: Unix time in seconds.
func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1e3 }
