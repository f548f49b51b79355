package dns

import "github.com/prometheus/client_golang/prometheus"

// Collector exports what the server's clients hold of it. It reads at each scrape and costs a question nothing.
func (s *Server) Collector() prometheus.Collector {
	return &collector{crowd: s.crowd,
		packets: prometheus.NewDesc("neardns_udp_in_flight",
			"Questions over UDP that are read and not yet answered.", nil, nil),
		packetsMax: prometheus.NewDesc("neardns_udp_in_flight_limit",
			"How many questions over UDP may be read and not yet answered; further ones wait in the socket.", nil, nil),
		open: prometheus.NewDesc("neardns_tcp_connections",
			"TCP connections that are open.", nil, nil),
		most: prometheus.NewDesc("neardns_tcp_connections_limit",
			"How many TCP connections may be open (limits.tcpConnections).", nil, nil),
		shed: prometheus.NewDesc("neardns_tcp_connections_shed_total",
			"TCP connections that had to go, by reason: idle (the longest idle one made room for another) or refused (there was no place and no idle one).",
			[]string{"reason"}, nil)}
}

type collector struct {
	crowd                                 *crowd
	packets, packetsMax, open, most, shed *prometheus.Desc
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.packets, c.packetsMax, c.open, c.most, c.shed} {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	open, most := c.crowd.connections()
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	gauge(c.packets, float64(c.crowd.packets.Load()))
	gauge(c.packetsMax, float64(c.crowd.packetsMax.Load()))
	gauge(c.open, float64(open))
	gauge(c.most, float64(most))
	ch <- prometheus.MustNewConstMetric(c.shed, prometheus.CounterValue, float64(c.crowd.idled.Load()), "idle")
	ch <- prometheus.MustNewConstMetric(c.shed, prometheus.CounterValue, float64(c.crowd.refused.Load()), "refused")
}
