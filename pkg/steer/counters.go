package steer

// Counter names, as Counters returns them. UDP counters count packets, TCP counters count connections (SYNs).
const (
	CounterDeliveredUDP = "delivered_udp"   // delivered to the agent, under a lease
	CounterDeliveredTCP = "delivered_tcp"   //
	CounterHeardUDP     = "heard_udp"       // those of them that passed the host's own filters too
	CounterHeardTCP     = "heard_tcp"       //
	CounterFallbackUDP  = "fallback_udp"    // rewritten to the cluster DNS address
	CounterFallbackTCP  = "fallback_tcp"    //
	CounterProbe        = "probe"           // of the prober
	CounterHostUDP      = "host_udp"        // queries of host processes, with node interception
	CounterHostTCP      = "host_tcp"        //
	CounterUplink       = "refused_uplink"  // from other hosts, for which the cache is no resolver: they fall back
	CounterStranger     = "refused_source"  // from a source that does not live behind the link it came by: they fall back
	CounterLeaseRenewal = "lease_datagrams" // control datagrams of the agent
)

// Counter is a named counter's value; see the Counter names for what one packet means.
type Counter struct{ Packets, Bytes uint64 }
