// Package telemetry owns what the agent shows of itself: one registry of metrics, the HTTP endpoints /metrics, /healthz
// and /readyz, the status socket and the logger. It must never decide anything, and nothing waits for it.
//
// Failure policy: an endpoint that cannot listen is tried again forever and logged once; the cache serves meanwhile.
package telemetry

import (
	"net/netip"
	"runtime"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

const namespace = "neardns"

// Registry is what a role exports. Its methods may be called by any goroutine.
type Registry struct{ registry *prometheus.Registry }

// NewRegistry makes one. version stands in neardns_build_info.
func NewRegistry(version string) *Registry {
	r := &Registry{registry: prometheus.NewRegistry()}
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "build_info",
		Help: "A metric with a constant '1' value labeled by the agent's version and the Go release that built it."}, []string{"version",
		"goversion"})
	info.WithLabelValues(version, runtime.Version()).Set(1)
	r.registry.MustRegister(info)
	return r
}

// Metrics is the registry of the agent and what is counted in it. Its methods may be called by any goroutine.
type Metrics struct {
	*Registry
	lease   *prometheus.GaugeVec
	changes *prometheus.CounterVec
	probes  map[string]prometheus.Counter
	lost    map[string]prometheus.Counter
	repairs map[string]prometheus.Counter
	reloads map[bool]prometheus.Counter
	proven  *prometheus.GaugeVec
	handed  map[string]prometheus.Counter
	pods    map[string]prometheus.Gauge
	canAsk  prometheus.Gauge
	config  prometheus.Gauge

	mu   sync.Mutex // guards held
	held map[string]bool
}

// The closed lists behind the labels. A value outside them is counted as "other".
var (
	probeResults = [...]string{"ok", "timeout", "refused", "wrong-answer", "slow", "network", "canceled", "other"}
	lossReasons  = [...]string{"timeout", "refused", "wrong-answer", "slow", "network", "upstream", "other"}
	repairKinds  = [...]string{"link", "rules", "firewall", "prober", "other"}
	handovers    = [...]string{"taken", "given", "refused", "failed"}
	podStates    = [...]string{"steered", "pending", "given-back", "left-alone", "gone"}
)

// New makes the agent's.
func New(version string) *Metrics {
	m := &Metrics{Registry: NewRegistry(version), held: map[string]bool{}, probes: map[string]prometheus.Counter{},
		lost:    map[string]prometheus.Counter{},
		repairs: map[string]prometheus.Counter{}, reloads: map[bool]prometheus.Counter{}, pods: map[string]prometheus.Gauge{}}
	m.lease = prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "lease_held",
		Help: "Whether the agent holds the lease for an address and protocol (1), or kube-dns answers (0)."}, []string{"address", "protocol"})
	m.changes = prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "lease_changes_total",
		Help: "How often a lease began or ended."}, []string{"address", "protocol"})
	m.proven = prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "fallback_proven",
		Help: "Whether the way back to kube-dns was proven for a cluster DNS address (1); if not (0), new pods are left alone."},
		[]string{"cluster_dns"})
	probes := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "probes_total",
		Help: "Questions of the prober, by what came of them."}, []string{"result"})
	lost := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "lease_lost_total",
		Help: "Leases that were held and lost to failing probes, by what the last probe met."}, []string{"reason"})
	repairs := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "repairs_total",
		Help: "Things on the node that were not as they should be and were mended, by kind."}, []string{"kind"})
	reloads := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "reloads_total",
		Help: "Changed configurations, taken over or refused."}, []string{"result"})
	m.config = prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "config_ok",
		Help: "Whether the agent serves by the configuration as it is now (1), or refused it and serves by the one before (0)."})
	m.config.Set(1)
	handed := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "handovers_total",
		Help: "Hand-overs of the node from one agent to the next: taken by this one, given by it, refused by it, or failed."}, []string{"result"})
	m.canAsk = prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "can_ask",
		Help: "Whether a question of the agent's own for the cluster's names was answered last time (1), or not, or none was asked yet (0)."})
	pods := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "pods",
		Help: "Pod attachments on this node, by what was decided for them."}, []string{"state"})
	m.registry.MustRegister(m.lease, m.changes, m.proven, probes, lost, repairs, reloads, handed, pods, m.canAsk, m.config)
	for _, r := range probeResults {
		m.probes[r] = probes.WithLabelValues(r)
	}
	for _, r := range lossReasons {
		m.lost[r] = lost.WithLabelValues(r)
	}
	for _, k := range repairKinds {
		m.repairs[k] = repairs.WithLabelValues(k)
	}
	m.reloads[true], m.reloads[false] = reloads.WithLabelValues("taken"), reloads.WithLabelValues("refused")
	m.handed = map[string]prometheus.Counter{}
	for _, r := range handovers {
		m.handed[r] = handed.WithLabelValues(r)
	}
	for _, s := range podStates {
		m.pods[s] = pods.WithLabelValues(s)
	}
	return m
}

// Gatherer returns everything to be scraped: ours, and what others registered with the default registry, which CoreDNS's
// plugins use and which holds the process's own metrics.
func (r *Registry) Gatherer() prometheus.Gatherer {
	return prometheus.Gatherers{r.registry, prometheus.DefaultGatherer}
}

// Totals sums counters up over their labels, in the order of names. One that counts nothing yet is 0.
func (m *Metrics) Totals(names ...string) []float64 {
	out := make([]float64, len(names))
	families, _ := m.Gatherer().Gather() // the rest is returned together with the error
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
func (m *Metrics) Lease(addr netip.Addr, protocol string, held bool) {
	address := addr.String()
	value := 0.0
	if held {
		value = 1
	}
	m.lease.WithLabelValues(address, protocol).Set(value)
	changes := m.changes.WithLabelValues(address, protocol) // made at once, so that its first change is seen
	m.mu.Lock()
	defer m.mu.Unlock()
	if key := address + protocol; m.held[key] != held {
		m.held[key] = held
		changes.Inc()
	}
}

// LeaseGone removes the metrics of a lease that is not wanted any more.
func (m *Metrics) LeaseGone(addr netip.Addr, protocol string) {
	address := addr.String()
	m.lease.DeleteLabelValues(address, protocol)
	m.changes.DeleteLabelValues(address, protocol)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.held, address+protocol)
}

// Probe counts one probe; "" is a success.
func (m *Metrics) Probe(failure string) {
	if failure == "" {
		failure = "ok"
	}
	if c := m.probes[failure]; c != nil {
		c.Inc()
		return
	}
	m.probes["other"].Inc()
}

// LeaseLost counts a lease that was held and is not any more because probes failed.
func (m *Metrics) LeaseLost(reason string) {
	if c := m.lost[reason]; c != nil {
		c.Inc()
		return
	}
	m.lost["other"].Inc()
}

// Repair counts one repair.
func (m *Metrics) Repair(kind string) {
	if c := m.repairs[kind]; c != nil {
		c.Inc()
		return
	}
	m.repairs["other"].Inc()
}

// Reload counts one changed configuration, taken over or refused.
func (m *Metrics) Reload(taken bool) {
	m.reloads[taken].Inc()
	m.config.Set(truth(taken))
}

// Read reports whether the configuration as it was last read is valid. An invalid one counts as a refused reload. A valid one is not
// counted as a reload here, because it may be the one in effect, put back.
func (m *Metrics) Read(ok bool) {
	if ok {
		m.config.Set(1)
	} else {
		m.Reload(false)
	}
}

// Handover counts one hand-over: taken, given, refused or failed.
func (m *Metrics) Handover(result string) {
	if c := m.handed[result]; c != nil {
		c.Inc()
	}
}

// FallbackVerified records whether the fallback to a cluster DNS address is verified.
func (m *Metrics) FallbackVerified(clusterDNS netip.Addr, ok bool) {
	value := 0.0
	if ok {
		value = 1
	}
	m.proven.WithLabelValues(clusterDNS.String()).Set(value)
}

// FallbackGone removes the metrics of a fallback that is not wanted any more.
func (m *Metrics) FallbackGone(clusterDNS netip.Addr) {
	m.proven.DeleteLabelValues(clusterDNS.String())
}

// Pods records how many attachments are in each state.
func (m *Metrics) Pods(counts map[string]int) {
	for _, s := range podStates {
		m.pods[s].Set(float64(counts[s]))
	}
}

// CanQuery records whether the agent can query what pods need.
func (m *Metrics) CanQuery(ok bool) {
	value := 0.0
	if ok {
		value = 1
	}
	m.canAsk.Set(value)
}

// Collect exports what another part of the agent counts by itself. It must be called once for each, before any scrape.
func (r *Registry) Collect(c ...prometheus.Collector) { r.registry.MustRegister(c...) }

// Switch is the value of one of the switch's counters.
type Switch struct {
	// Way is delivered, heard (of these, after the host's filters), fallback, uplink and stranger (to kube-dns, too), host, dropped or
	// probe.
	Way      string
	Protocol string // udp, tcp
	Packets  float64
}

// CollectSwitch exports the kernel's own counters of the switch at each scrape. They belong to the table: they go on over
// the agent's restarts and begin at zero with a new table.
func (m *Metrics) CollectSwitch(read func() ([]Switch, error)) {
	m.registry.MustRegister(&switchCollector{read: read, desc: prometheus.NewDesc(namespace+"_switch_packets_total",
		"Questions that passed the switch, by way: packets over UDP, connections over TCP. Fallback has the agent's own proofs of that "+
			"way in it, a few a minute.", []string{"way", "protocol"}, nil)})
}

type switchCollector struct {
	desc *prometheus.Desc
	read func() ([]Switch, error)
}

func (c *switchCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

func (c *switchCollector) Collect(ch chan<- prometheus.Metric) {
	values, err := c.read()
	if err != nil {
		return // no table: nothing has passed it
	}
	for _, v := range values {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, v.Packets, v.Way, v.Protocol)
	}
}

// Namespace has the counts of the queries of one namespace's pods.
type Namespace struct {
	Name                            string
	Queries, Hits, Kernel, Failures uint64
}

// CollectNamespaces exports the counts of each namespace at each scrape. read must return a small number of namespaces.
func (m *Metrics) CollectNamespaces(read func() []Namespace) {
	label := []string{"namespace"}
	m.registry.MustRegister(&namespaceCollector{read: read,
		queries: prometheus.NewDesc(namespace+"_namespace_queries_total", "Queries of this node's pods, by namespace.", label, nil),
		hits:    prometheus.NewDesc(namespace+"_namespace_hits_total", "Of these, answered from the cache.", label, nil),
		kernel:  prometheus.NewDesc(namespace+"_namespace_kernel_hits_total", "Of these, answered in the kernel.", label, nil),
		failures: prometheus.NewDesc(namespace+"_namespace_failures_total",
			"Of the queries, answered with a failure: neither an answer nor that there is no such name.", label, nil)})
}

type namespaceCollector struct {
	read                            func() []Namespace
	queries, hits, kernel, failures *prometheus.Desc
}

func (c *namespaceCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.queries
	ch <- c.hits
	ch <- c.kernel
	ch <- c.failures
}

func (c *namespaceCollector) Collect(ch chan<- prometheus.Metric) {
	for _, n := range c.read() {
		ch <- prometheus.MustNewConstMetric(c.queries, prometheus.CounterValue, float64(n.Queries), n.Name)
		ch <- prometheus.MustNewConstMetric(c.hits, prometheus.CounterValue, float64(n.Hits), n.Name)
		ch <- prometheus.MustNewConstMetric(c.kernel, prometheus.CounterValue, float64(n.Kernel), n.Name)
		ch <- prometheus.MustNewConstMetric(c.failures, prometheus.CounterValue, float64(n.Failures), n.Name)
	}
}
