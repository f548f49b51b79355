package listener

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/internal/telemetry/scrape"
)

// Collector returns a collector of what clients use of the server's limits. It reads the values at each scrape, so it costs queries
// nothing.
func (s *Server) Collector() prometheus.Collector {
	var set scrape.Set
	inFlight := set.Gauge("neardns_udp_in_flight", "Queries over UDP that are read and not yet answered.")
	maxInFlight := set.Gauge("neardns_udp_in_flight_limit", "How many queries over UDP may be read and not yet answered.")
	dropped := set.Counter("neardns_udp_dropped_total",
		"Queries over UDP that were dropped because their client had its fair share in progress, "+
			"and answers because its link holds answers back or the socket had no room to send.")
	open := set.Gauge("neardns_tcp_connections", "TCP connections that are open.")
	maxOpen := set.Gauge("neardns_tcp_connections_limit", "How many TCP connections may be open (limits.tcpConnections).")
	shed := set.Counter("neardns_tcp_connections_shed_total",
		"TCP connections that were closed because of the limit, by reason: idle (the longest idle one made room for another) "+
			"or refused (its client had its share, or there was no slot, and none could be closed for it).", "reason")
	return set.Read(func(to chan<- prometheus.Metric) {
		packets, conns := s.quota.counts()
		inFlight.Send(to, float64(packets.taken))
		maxInFlight.Send(to, float64(packets.most))
		open.Send(to, float64(conns.taken))
		maxOpen.Send(to, float64(conns.most))
		dropped.Send(to, float64(s.quota.dropped.Load()))
		shed.Send(to, float64(s.quota.idled.Load()), "idle")
		shed.Send(to, float64(s.quota.refused.Load()), "refused")
	})
}
