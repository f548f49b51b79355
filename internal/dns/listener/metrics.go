package listener

import "github.com/prometheus/client_golang/prometheus"

// Collector exports what clients use of the server. It reads at each scrape and costs a query nothing.
func (s *Server) Collector() prometheus.Collector {
	return &collector{quota: s.quota,
		packets: prometheus.NewDesc("neardns_udp_in_flight",
			"Queries over UDP that are read and not yet answered.", nil, nil),
		packetsMax: prometheus.NewDesc("neardns_udp_in_flight_limit",
			"How many queries over UDP may be read and not yet answered.", nil, nil),
		dropped: prometheus.NewDesc("neardns_udp_dropped_total",
			"Queries over UDP, or answers to them, that were dropped because their client had its fair share in progress, "+
				"its link holds answers back, or the socket was full.", nil, nil),
		open: prometheus.NewDesc("neardns_tcp_connections",
			"TCP connections that are open.", nil, nil),
		most: prometheus.NewDesc("neardns_tcp_connections_limit",
			"How many TCP connections may be open (limits.tcpConnections).", nil, nil),
		shed: prometheus.NewDesc("neardns_tcp_connections_shed_total",
			"TCP connections that were closed for others, by reason: idle (the longest idle one made room for another) "+
				"or refused (there was no slot and no idle one).",
			[]string{"reason"}, nil)}
}

type collector struct {
	quota                                          *quota
	packets, packetsMax, dropped, open, most, shed *prometheus.Desc
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.packets, c.packetsMax, c.dropped, c.open, c.most, c.shed} {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	packets, conns := c.quota.counts()
	gauge := func(d *prometheus.Desc, n int) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n))
	}
	gauge(c.packets, packets.taken)
	gauge(c.packetsMax, packets.most)
	gauge(c.open, conns.taken)
	gauge(c.most, conns.most)
	ch <- prometheus.MustNewConstMetric(c.dropped, prometheus.CounterValue, float64(c.quota.dropped.Load()+c.quota.overflows.count()))
	ch <- prometheus.MustNewConstMetric(c.shed, prometheus.CounterValue, float64(c.quota.idled.Load()), "idle")
	ch <- prometheus.MustNewConstMetric(c.shed, prometheus.CounterValue, float64(c.quota.refused.Load()), "refused")
}
