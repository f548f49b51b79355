package steer

// Names of the counters in the host's rules, as Counters returns them. A UDP counter counts packets, a TCP counter connections
// (SYNs).
const (
	CounterDeliveredUDP = "delivered_udp"   // packets delivered to the agent, under a lease
	CounterDeliveredTCP = "delivered_tcp"   // connections to the agent, under a lease
	CounterHeardUDP     = "heard_udp"       // delivered packets, and those to Host.Ceded, that also passed the host's own filters
	CounterHeardTCP     = "heard_tcp"       // delivered connections, and those to Host.Ceded, whose SYN also passed the host's own filters
	CounterFallbackUDP  = "fallback_udp"    // incoming packets sent to kube-dns: rewritten to the cluster DNS address
	CounterFallbackTCP  = "fallback_tcp"    // incoming connections sent to kube-dns
	CounterProbe        = "probe"           // queries of the prober, delivered without a lease
	CounterHostUDP      = "host_udp"        // packets of host processes that node interception sent to the agent
	CounterHostTCP      = "host_tcp"        // connections of host processes that node interception sent to the agent
	CounterUplink       = "refused_uplink"  // packets of queries from other hosts, which the cache does not serve: sent to kube-dns
	CounterStranger     = "refused_source"  // packets whose source address is not routed by the link they came in on: sent to kube-dns
	CounterLeaseRenewal = "lease_datagrams" // the agent's control packets, which renew or withdraw leases, or hold or release suspects
)

// Counter is the value of one of the counters named above.
type Counter struct{ Packets, Bytes uint64 }
