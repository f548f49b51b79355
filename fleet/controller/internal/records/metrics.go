package records

import (
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/neardns/neardns/fleet/controller/zones"
)

// Metrics are the metrics of DNSZone, DNSRecord and DNSPolicy objects; package zonewriter has those of the DNS zones themselves. Only the
// replica that leads sets them.
type Metrics struct {
	records, conditions, policies *prometheus.GaugeVec

	counted map[[3]string]float64 // by DNSZone, type and reason of a condition: number of DNSRecords, since begin
	seen    map[[3]string]bool
	reasons map[[2]string]string // by DNSZone and type of its condition: the reason in the last call of zone
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{seen: map[[3]string]bool{}, reasons: map[[2]string]string{},
		records: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "neardns_dnsrecords",
			Help: "DNSRecords by the current reason of each condition. dnszone is empty if no DNSZone contains the host."},
			[]string{"dnszone", "type", "reason"}),
		conditions: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "neardns_dnszone_condition",
			Help: "Conditions of a DNSZone: 1 for the current reason, 0 for earlier reasons."},
			[]string{"dnszone", "type", "reason"}),
		policies: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "neardns_dnspolicies",
			Help: "DNSPolicies by the reason of their condition Accepted."}, []string{"reason"}),
	}
	for _, c := range []prometheus.Collector{m.records, m.conditions, m.policies} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// begin and end enclose one count of all DNSRecords. If none has a reason any more, its series stays with value 0, because a series that
// disappears and returns would reset alerts.
func (m *Metrics) begin() { m.counted = map[[3]string]float64{} }

func (m *Metrics) end() {
	for key := range m.counted {
		m.seen[key] = true
	}
	for key := range m.seen {
		m.records.WithLabelValues(key[:]...).Set(m.counted[key])
	}
}

func (m *Metrics) record(dnsZone string, conditions []metav1.Condition) {
	for _, c := range conditions {
		m.counted[[3]string{dnsZone, c.Type, c.Reason}]++
	}
}

// zone sets the condition metrics of one DNSZone.
func (m *Metrics) zone(dnsZone string, conditions []metav1.Condition) {
	for _, c := range conditions {
		key := [2]string{dnsZone, c.Type}
		if old, ok := m.reasons[key]; ok && old != c.Reason {
			m.conditions.WithLabelValues(dnsZone, c.Type, old).Set(0)
		}
		m.reasons[key] = c.Reason
		m.conditions.WithLabelValues(dnsZone, c.Type, c.Reason).Set(1)
	}
}

// setPolicies counts DNSPolicies by the reason of Accepted. Each reason has a series.
func (m *Metrics) setPolicies(decided map[zones.Key]*zones.Policy) {
	counted := map[string]float64{zones.Accepted: 0, zones.Deleting: 0, zones.TargetNotFound: 0, zones.NotReadable: 0, zones.Conflicted: 0}
	for _, p := range decided {
		counted[p.Reason]++
	}
	for reason, n := range counted {
		m.policies.WithLabelValues(reason).Set(n)
	}
}

// keep drops the condition series of all DNSZones that are not in present.
func (m *Metrics) keep(present map[string]*zones.Zone) {
	for key := range m.reasons {
		if present[key[0]] == nil {
			m.conditions.DeletePartialMatch(prometheus.Labels{"dnszone": key[0]})
			delete(m.reasons, key)
		}
	}
}
