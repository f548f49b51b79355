package hostsfile

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/internal/telemetry/scrape"
)

const namespace = "neardns"

// counts has the counters of the role `hosts`. Names of Services are not labels, because every client of the metrics endpoint would see
// them; they are in the status.
type counts struct {
	queries *prometheus.CounterVec
	writes  *prometheus.CounterVec
	repairs prometheus.Counter
}

func newCounts() *counts {
	c := &counts{
		queries: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "hosts_questions_total",
			Help: "Queries to kube-dns for the addresses of the Services in hosts.services, by result."}, []string{"result"}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "hosts_writes_total",
			Help: "Writes of the hosts file, by result. If the file already has the right lines, it is not written."}, []string{"result"}),
		repairs: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "hosts_repairs_total",
			Help: "How often neardns restored its lines after another program had changed them in the hosts file."}),
	}
	for _, result := range []string{"answered", "denied", "failed"} {
		c.queries.WithLabelValues(result)
	}
	for _, result := range []string{"ok", "failed"} {
		c.writes.WithLabelValues(result)
	}
	return c
}

// Collectors returns the metrics of the role `hosts`. The gauges read its state at each scrape.
func (h *Hosts) Collectors() []prometheus.Collector {
	var s scrape.Set
	ok := s.Gauge("neardns_hosts_file_ok", "Whether the hosts file could be read and written at the last try (1), or not (0).")
	fighting := s.Gauge("neardns_hosts_fighting",
		"Whether another program keeps changing our lines, so that repairs are less frequent (1).")
	services := s.Gauge("neardns_hosts_services", "Services of hosts.services, by their state in the hosts file: current; stale (kube-dns "+
		"has not answered for five minutes); missing (no line, as there is no such Service, or kube-dns has not answered yet); foreign (a line "+
		"that is not ours has one of the names).", "state")
	return []prometheus.Collector{h.counts.queries, h.counts.writes, h.counts.repairs, s.Read(func(to chan<- prometheus.Metric) {
		state, now := h.State(), time.Now()
		ok.Send(to, scrape.Bool(state.Fault == "" && !state.Looked.IsZero()))
		fighting.Send(to, scrape.Bool(state.Fighting))
		for _, standing := range []Standing{Missing, Foreign, Stale, Current} {
			count := 0.0
			for _, service := range state.Services {
				count += scrape.Bool(StandingOf(service, state.Since, now) == standing)
			}
			services.Send(to, count, string(standing))
		}
	})}
}
