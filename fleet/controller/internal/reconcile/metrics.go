package reconcile

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/fleet/controller/placement"
)

// Metrics are those of the placement. Only the leader has values. A replica that loses the lead exits, and its series end.
type Metrics struct {
	nodes      *prometheus.GaugeVec
	conditions *prometheus.GaugeVec
	labels     *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "neardns_placement_nodes",
			Help: "Nodes by state: all that can run a cache; eligible, to run one; ready, eligible with a Ready cache; " +
				"excluded, with the label; entering and leaving, on their way."},
			[]string{"state"}),
		conditions: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "neardns_placement_condition",
			Help: "1 for the reason that each condition of the NodeDNS has now, 0 for its other reasons; all 0 without a NodeDNS."},
			[]string{"type", "reason"}),
		labels: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "neardns_placement_label_changes_total",
			Help: "Nodes whose label was set (exclude) or taken away (include)."}, []string{"change"}),
	}
	for _, c := range []prometheus.Collector{m.nodes, m.conditions, m.labels} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) set(d *placement.Decision, object bool) {
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
	if object {
		for _, c := range d.Conditions {
			m.conditions.WithLabelValues(c.Type, c.Reason).Set(1)
		}
	}
	m.labels.WithLabelValues("include")
	m.labels.WithLabelValues("exclude")
}

func (m *Metrics) labelled(excluded bool) {
	if excluded {
		m.labels.WithLabelValues("exclude").Inc()
	} else {
		m.labels.WithLabelValues("include").Inc()
	}
}
