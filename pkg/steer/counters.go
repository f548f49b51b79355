package steer

// Names of the counters in the host's rules, as Counters returns them. A UDP counter counts packets, a TCP counter connections
// (SYNs).
const (
	CounterDeliveredUDP = "delivered_udp"   // delivered to the agent, under a lease
	CounterDeliveredTCP = "delivered_tcp"   //
	CounterHeardUDP     = "heard_udp"       // delivered packets that also passed the host's own filters
	CounterHeardTCP     = "heard_tcp"       //
	CounterFallbackUDP  = "fallback_udp"    // sent to kube-dns: rewritten to the cluster DNS address
	CounterFallbackTCP  = "fallback_tcp"    //
	CounterProbe        = "probe"           // queries of the prober, delivered without a lease
	CounterHostUDP      = "host_udp"        // queries of host processes that node interception sent to the agent
	CounterHostTCP      = "host_tcp"        //
	CounterUplink       = "refused_uplink"  // from other hosts, which the cache does not serve: sent to kube-dns
	CounterStranger     = "refused_source"  // from an address that is not routed by the link it came in on: sent to kube-dns
	CounterLeaseRenewal = "lease_datagrams" // datagrams by which the agent renews or withdraws leases
)

// Counter is the value of one of the counters named above.
type Counter struct{ Packets, Bytes uint64 }
