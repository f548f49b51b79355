package reconcile

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/fleet/controller/placement"
)

// Metrics are the metrics of the placement. Only the replica that leads sets them. A replica that loses the lead exits, so its series
// end.
type Metrics struct {
	nodes      *prometheus.GaugeVec
	conditions *prometheus.GaugeVec
	labels     *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "neardns_placement_nodes",
			Help: "Nodes by state. all: can run the cache; eligible: the placement selects it; ready: eligible, its cache is Ready; " +
				"excluded: has the label neardns.io/cache: excluded; entering, leaving: is about to get or to lose the cache."},
			[]string{"state"}),
		conditions: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "neardns_placement_condition",
			Help: "Conditions of the NodeDNS: 1 for the current reason, 0 for its other reasons. All are 0 without a NodeDNS."},
			[]string{"type", "reason"}),
		labels: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "neardns_placement_label_changes_total",
			Help: "Writes of the label neardns.io/cache to a node: set (exclude) or removed (include)."}, []string{"change"}),
	}
	for _, c := range []prometheus.Collector{m.nodes, m.conditions, m.labels} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) set(d *placement.Decision, conditions []placement.Condition) {
	for state, n := range map[string]int{
		"all": d.Nodes, "eligible": d.Eligible, "ready": d.Ready, "excluded": d.ExcludedNodes, "entering": d.Entering, "leaving": d.Leaving,
	} {
		m.nodes.WithLabelValues(state).Set(float64(n))
	}
	for kind, reasons := range placement.Reasons() {
		for _, reason := range reasons {
			m.conditions.WithLabelValues(kind, reason).Set(0)
		}
	}
	for _, c := range conditions {
		m.conditions.WithLabelValues(c.Type, c.Reason).Set(1)
	}
	m.labels.WithLabelValues("include")
	m.labels.WithLabelValues("exclude")
}

func (m *Metrics) labelled(excluded bool) {
	change := "include"
	if excluded {
		change = "exclude"
	}
	m.labels.WithLabelValues(change).Inc()
}
