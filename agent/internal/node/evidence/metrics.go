package evidence

import (
	"iter"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/pkg/steer"
)

const namespace = "neardns"

// counts are the metrics of bypasses. They have no label for the pod, because the number of label values would be unbounded; the status
// names the pods.
type counts struct {
	all     []prometheus.Collector
	clients map[family]prometheus.Gauge

	begun, prolonged, ended prometheus.Counter
}

type family struct {
	name     string
	protocol steer.Protocol
}

func newCounts() *counts {
	clients := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "bypassed_clients",
		Help: "Clients (source, the agent's address, protocol) that kube-dns answers because their queries do not reach the agent."},
		[]string{"family", "protocol"})
	events := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "bypass_events_total",
		Help: "Client bypasses by event: begun, prolonged (queries still dropped), ended (one arrived, or none was sent)."}, []string{"event"})
	c := &counts{all: []prometheus.Collector{clients, events}, clients: map[family]prometheus.Gauge{},
		begun: events.WithLabelValues("begun"), prolonged: events.WithLabelValues("prolonged"), ended: events.WithLabelValues("ended")}
	for _, name := range []string{"ipv4", "ipv6"} {
		for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
			c.clients[family{name, p}] = clients.WithLabelValues(name, p.String())
		}
	}
	return c
}

func (c *counts) set(held iter.Seq[steer.Client]) {
	sum := map[family]int{}
	for client := range held {
		name := "ipv6"
		if client.Source.Is4() {
			name = "ipv4"
		}
		sum[family{name, client.Protocol}]++
	}
	for f, g := range c.clients {
		g.Set(float64(sum[f]))
	}
}

// Collectors returns the metrics.
func (e *Evidence) Collectors() []prometheus.Collector { return e.counts.all }
