// Package telemetry has the agent's metrics registry, the HTTP endpoints /metrics, /healthz and /readyz, the status socket and the
// logger. It decides nothing, and no query waits for it.
//
// On failure: an endpoint that cannot listen logs that once and tries again; queries are answered meanwhile.
package telemetry

import (
	"net/netip"
	"runtime"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/internal/telemetry/scrape"
	"github.com/neardns/neardns/pkg/steer"
)

const namespace = "neardns"

// Registry has the metrics of one program. Its methods are safe for concurrent use.
type Registry struct{ registry *prometheus.Registry }

// NewRegistry returns a registry with neardns_build_info, which has version as a label.
func NewRegistry(version string) *Registry {
	r := &Registry{registry: prometheus.NewRegistry()}
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "build_info",
		Help: "A metric with a constant '1' value labeled by the program's version and the Go release that built it."}, []string{"version",
		"goversion"})
	info.WithLabelValues(version, runtime.Version()).Set(1)
	r.registry.MustRegister(info)
	return r
}

// Metrics is the agent's registry with the agent's own metrics. Its methods are safe for concurrent use.
type Metrics struct {
	*Registry
	lease    *prometheus.GaugeVec
	changes  *prometheus.CounterVec
	probes   events
	lost     events
	repairs  events
	reloads  events
	handed   events
	verified *prometheus.GaugeVec
	pods     *prometheus.GaugeVec
	canQuery prometheus.Gauge
	config   prometheus.Gauge

	mu   sync.Mutex      // guards held
	held map[string]bool // whether each lease was held at the last call of Lease, by address and protocol
}

// podStates are the values of neardns_pods' label state.
var podStates = [...]string{"steered", "pending", "given-back", "left-alone", "gone"}

// New returns the agent's metrics.
func New(version string) *Metrics {
	m := &Metrics{Registry: NewRegistry(version), held: map[string]bool{}}
	r := m.registry
	m.lease = prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "lease_held",
		Help: "Whether the lease lets queries to an address and protocol reach the agent (1) or not (0)."}, []string{"address", "protocol"})
	m.changes = prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "lease_changes_total",
		Help: "How often the lease for an address and protocol began or ended."}, []string{"address", "protocol"})
	m.verified = prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "fallback_proven",
		Help: "Whether the fallback to kube-dns is verified for a cluster DNS address (1); if not (0), it is steered for no further pod."},
		[]string{"cluster_dns"})
	m.probes = newEvents(r, "probes_total", "Probes, by result.", "result",
		"ok", "timeout", "refused", "wrong-answer", "slow", "network", "canceled", "other")
	m.lost = newEvents(r, "lease_lost_total",
		"Leases that were lost, by the failure of the last probe, or upstream: no upstream answered.", "reason",
		"timeout", "refused", "wrong-answer", "slow", "network", "upstream", "other")
	m.repairs = newEvents(r, "repairs_total", "Repairs of things on the node that were not as they should be, by kind.", "kind",
		"link", "rules", "firewall", "prober", "other")
	m.reloads = newEvents(r, "reloads_total", "Changed configurations, taken over or refused.", "result", "taken", "refused")
	m.handed = newEvents(r, "handovers_total",
		"Handovers of the node from one agent to the next: taken by this one, given by it, refused by it, or failed.", "result",
		"taken", "given", "refused", "failed")
	m.config = prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "config_ok",
		Help: "Whether the agent serves by the configuration as it is now (1), or refused it and serves by the one before (0)."})
	m.config.Set(1)
	m.canQuery = prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "can_ask",
		Help: "Whether the agent's own last query for the cluster's names was answered (1), or not, or none was sent yet (0)."})
	m.pods = prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "pods",
		Help: "Interfaces of this node's pods, by whether their queries are steered to the cache."}, []string{"state"})
	r.MustRegister(m.lease, m.changes, m.verified, m.pods, m.canQuery, m.config)
	m.Pods(nil)
	return m
}

// events are counters by a label with a closed list of values.
type events map[string]prometheus.Counter

func newEvents(r *prometheus.Registry, name, help, label string, values ...string) events {
	all := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, []string{label})
	r.MustRegister(all)
	e := events{}
	for _, v := range values {
		e[v] = all.WithLabelValues(v)
	}
	return e
}

// count counts a value that is not in the list as "other". If the list lacks "other", the value is not counted.
func (e events) count(value string) {
	c := e[value]
	if c == nil {
		c = e["other"]
	}
	if c != nil {
		c.Inc()
	}
}

// Gatherer returns all metrics to scrape: the registry's, and those of the default registry, which CoreDNS's plugins and the Go and
// process collectors use.
func (r *Registry) Gatherer() prometheus.Gatherer {
	return prometheus.Gatherers{r.registry, prometheus.DefaultGatherer}
}

// Totals returns the sum of each named counter over its labels, 0 for a counter that has no value yet.
func (m *Metrics) Totals(names ...string) []float64 {
	out := make([]float64, len(names))
	families, _ := m.Gatherer().Gather() // on an error, Gather still returns what it could gather
	for _, f := range families {
		if at := slices.Index(names, f.GetName()); at >= 0 {
			for _, metric := range f.GetMetric() {
				out[at] += metric.GetCounter().GetValue()
			}
		}
	}
	return out
}

// Lease records whether a lease is held.
func (m *Metrics) Lease(addr netip.Addr, p steer.Protocol, held bool) {
	address, protocol := addr.String(), p.String()
	m.lease.WithLabelValues(address, protocol).Set(scrape.Bool(held))
	changes := m.changes.WithLabelValues(address, protocol) // created at once, so that rate() sees the first change
	m.mu.Lock()
	defer m.mu.Unlock()
	if key := address + protocol; m.held[key] != held {
		m.held[key] = held
		changes.Inc()
	}
}

// LeaseGone removes the metrics of a lease that the agent no longer keeps.
func (m *Metrics) LeaseGone(addr netip.Addr, p steer.Protocol) {
	address, protocol := addr.String(), p.String()
	m.lease.DeleteLabelValues(address, protocol)
	m.changes.DeleteLabelValues(address, protocol)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.held, address+protocol)
}

// Probe counts one probe by its failure; "" means that it succeeded.
func (m *Metrics) Probe(failure string) {
	if failure == "" {
		failure = "ok"
	}
	m.probes.count(failure)
}

// LeaseLost counts a lost lease, by the failure of the last probe, or "upstream" if no upstream answered the agent.
func (m *Metrics) LeaseLost(reason string) { m.lost.count(reason) }

// Repair counts one repair.
func (m *Metrics) Repair(kind string) { m.repairs.count(kind) }

// Reload counts one changed configuration, taken over or refused.
func (m *Metrics) Reload(taken bool) {
	result := "refused"
	if taken {
		result = "taken"
	}
	m.reloads.count(result)
	m.config.Set(scrape.Bool(taken))
}

// Read records whether the configuration file is valid as it was last read. An invalid one counts as a refused reload. A valid one does
// not count as a reload, because it may equal the configuration in effect.
func (m *Metrics) Read(ok bool) {
	if ok {
		m.config.Set(1)
	} else {
		m.Reload(false)
	}
}

// Handover counts one handover: taken, given, refused or failed.
func (m *Metrics) Handover(result string) { m.handed.count(result) }

// FallbackVerified records whether the fallback to a cluster DNS address is verified.
func (m *Metrics) FallbackVerified(clusterDNS netip.Addr, ok bool) {
	m.verified.WithLabelValues(clusterDNS.String()).Set(scrape.Bool(ok))
}

// FallbackGone removes the metric of a cluster DNS address that is no longer configured.
func (m *Metrics) FallbackGone(clusterDNS netip.Addr) {
	m.verified.DeleteLabelValues(clusterDNS.String())
}

// Pods records how many of the pods' network interfaces are in each state.
func (m *Metrics) Pods(counts map[string]int) {
	for _, s := range podStates {
		m.pods.WithLabelValues(s).Set(float64(counts[s]))
	}
}

// CanQuery records whether the agent's own query for the cluster's names was answered.
func (m *Metrics) CanQuery(ok bool) { m.canQuery.Set(scrape.Bool(ok)) }

// Collect registers collectors for what other packages count. Call it once for each collector, before the first scrape.
func (r *Registry) Collect(c ...prometheus.Collector) { r.registry.MustRegister(c...) }

// CollectSwitch exports the kernel's counters of the switch at each scrape. They are part of the host's rules, so they continue over the
// agent's restarts and start at zero with new rules. steer.CounterDeliveredUDP and the constants after it explain the ways.
func (m *Metrics) CollectSwitch(read func() (map[string]steer.Counter, error)) {
	var s scrape.Set
	packets := s.Counter(namespace+"_switch_packets_total", "Queries that passed the switch, by way: packets over UDP, connections over TCP. "+
		"The ways uplink and stranger count every packet over TCP. "+
		"The way fallback includes the agent's own fallback checks, a few a minute.", "way", "protocol")
	m.Collect(s.Read(func(to chan<- prometheus.Metric) {
		counters, _ := read() // after an error there are none: without the host's rules, nothing is exported
		for _, c := range []struct{ name, way, protocol string }{
			{steer.CounterDeliveredUDP, "delivered", "udp"}, {steer.CounterDeliveredTCP, "delivered", "tcp"},
			{steer.CounterHeardUDP, "heard", "udp"}, {steer.CounterHeardTCP, "heard", "tcp"},
			{steer.CounterFallbackUDP, "fallback", "udp"}, {steer.CounterFallbackTCP, "fallback", "tcp"},
			{steer.CounterHostUDP, "host", "udp"}, {steer.CounterHostTCP, "host", "tcp"},
			{steer.CounterUplink, "uplink", "any"}, {steer.CounterStranger, "stranger", "any"},
			{steer.CounterProbe, "probe", "any"},
		} {
			if v, ok := counters[c.name]; ok {
				packets.Send(to, float64(v.Packets), c.way, c.protocol)
			}
		}
	}))
}
