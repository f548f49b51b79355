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
	gauge := func(name, help string, labels prometheus.Labels, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help, ConstLabels: labels}, value)
	}
	out := []prometheus.Collector{h.counts.queries, h.counts.writes, h.counts.repairs,
		gauge("hosts_file_ok", "Whether the hosts file could be read and written at the last try (1), or not (0).", nil, func() float64 {
			s := h.State()
			return scrape.Bool(s.Fault == "" && !s.Looked.IsZero())
		}),
		gauge("hosts_fighting", "Whether another program keeps changing our lines, so that repairs are less frequent (1).", nil,
			func() float64 { return scrape.Bool(h.State().Fighting) })}
	for _, standing := range []Standing{Missing, Foreign, Stale, Current} {
		out = append(out, gauge("hosts_services", "Services of hosts.services, by their state in the hosts file: current; stale (kube-dns has "+
			"not answered for five minutes); missing (no line, as there is no such Service, or kube-dns has not answered yet); foreign (a line "+
			"that is not ours has one of the names).", prometheus.Labels{"state": string(standing)}, func() (n float64) {
			s := h.State()
			for _, service := range s.Services {
				n += scrape.Bool(StandingOf(service, s.Since, time.Now()) == standing)
			}
			return n
		}))
	}
	return out
}
