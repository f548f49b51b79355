package evidence

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/internal/telemetry/scrape"
)

// counts count the events of bypasses.
type counts struct {
	all                     *prometheus.CounterVec
	begun, prolonged, ended prometheus.Counter
}

func newCounts() counts {
	all := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "neardns", Name: "bypass_events_total",
		Help: "Client bypasses by event: begun, prolonged (queries still dropped), ended (one arrived, none was sent, or new rules)."},
		[]string{"event"})
	return counts{all, all.WithLabelValues("begun"), all.WithLabelValues("prolonged"), all.WithLabelValues("ended")}
}

// Collectors returns the metrics. They have no label for the pod, because the number of label values would be unbounded; the status names
// the pods.
func (e *Evidence) Collectors() []prometheus.Collector {
	var s scrape.Set
	clients := s.Gauge("neardns_bypassed_clients", "Clients (source, the agent's address, protocol) that kube-dns answers because their "+
		"queries do not reach the agent.", "family", "protocol")
	return []prometheus.Collector{e.counts.all, s.Read(func(to chan<- prometheus.Metric) {
		e.mu.Lock()
		defer e.mu.Unlock()
		sum := map[string]float64{}
		for c := range e.judge.bypassed {
			family := "ipv6"
			if c.Source.Is4() {
				family = "ipv4"
			}
			sum[family+c.Protocol.String()]++
		}
		for _, family := range []string{"ipv4", "ipv6"} {
			for _, protocol := range []string{"udp", "tcp"} {
				clients.Send(to, sum[family+protocol], family, protocol)
			}
		}
	})}
}
