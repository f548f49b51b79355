package zonewriter

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/fleet/zones/zone"
)

// Metrics are the metrics of all zones that a process publishes in. A nil *Metrics is valid and does nothing.
type Metrics struct {
	writes, specs, deletions, prunes, removals, messages, retries, conflicts *prometheus.CounterVec
	beats, serial, readAt                                                    *prometheus.GaugeVec
}

// NewMetrics registers the metrics of all publishers.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		o := prometheus.CounterOpts{Namespace: "neardns", Name: "zone_" + name, Help: help}
		c := prometheus.NewCounterVec(o, append([]string{"zone"}, labels...))
		reg.MustRegister(c)
		return c
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		o := prometheus.GaugeOpts{Namespace: "neardns", Name: "zone_" + name, Help: help}
		g := prometheus.NewGaugeVec(o, append([]string{"zone"}, labels...))
		reg.MustRegister(g)
		return g
	}
	return &Metrics{
		writes:    counter("writes_total", "Changes of a host that the primary accepted; a message can have several."),
		specs:     counter("record_spec_updates_total", "Changes of what this cluster wants to publish for a host."),
		deletions: counter("deletes_total", "Addresses that this cluster deleted at hosts and at the names of hosts' regions."),
		prunes:    counter("prunes_total", "Changes that removed this cluster from a host, or deleted bookkeeping without an owner."),
		removals:  counter("removals_total", "Hosts of which a dead cluster's records were removed."),
		messages:  counter("messages_total", "UPDATE messages to the primary, by result.", "result"),
		retries:   counter("retries_total", "Reads and rounds of updates that failed and are retried, by reason.", "reason"),
		conflicts: counter("conflicts_total", "How often a host got a conflict, by reason.", "reason"),
		beats:     gauge("heartbeat_age_seconds", "For how long a cluster's heartbeat had not changed at the last read.", "cluster"),
		serial:    gauge("serial", "The serial of the zone as read."),
		readAt:    gauge("read_timestamp_seconds", "Unix time at which the zone as read was last known to be current."),
	}
}

func (m *Metrics) spec(zone string) {
	if m != nil {
		m.specs.WithLabelValues(zone).Inc()
	}
}

func (m *Metrics) message(zone, result string) {
	if m != nil {
		m.messages.WithLabelValues(zone, result).Inc()
	}
}

func (m *Metrics) retry(zone, reason string) {
	if m != nil {
		m.retries.WithLabelValues(zone, reason).Inc()
	}
}

func (m *Metrics) conflict(zone, reason string) {
	if m != nil {
		m.conflicts.WithLabelValues(zone, reason).Inc()
	}
}

func (m *Metrics) removed(zone string) {
	if m != nil {
		m.removals.WithLabelValues(zone).Inc()
	}
}

func (m *Metrics) wrote(zoneName string, st zone.Step) {
	if m == nil {
		return
	}
	m.writes.WithLabelValues(zoneName).Inc()
	m.deletions.WithLabelValues(zoneName).Add(float64(len(st.Gone)))
	if st.Leaves {
		m.prunes.WithLabelValues(zoneName).Inc()
	}
}

func (m *Metrics) read(zoneName string, z ZoneStatus) {
	if m == nil {
		return
	}
	m.serial.WithLabelValues(zoneName).Set(float64(z.State.Serial))
	m.readAt.WithLabelValues(zoneName).Set(float64(z.Read.UnixNano()) / float64(time.Second))
	m.beats.DeletePartialMatch(prometheus.Labels{"zone": zoneName})
	for cluster, age := range z.Silent {
		m.beats.WithLabelValues(zoneName, cluster).Set(age.Seconds())
	}
}

// ended removes the gauges of a zone that is no longer read, because their values would be outdated. The counters stay.
func (m *Metrics) ended(zoneName string) {
	if m == nil {
		return
	}
	for _, g := range []*prometheus.GaugeVec{m.beats, m.serial, m.readAt} {
		g.DeletePartialMatch(prometheus.Labels{"zone": zoneName})
	}
}
