package steer

// Counter names, as Counters returns them. Packets, except for TCP, where connections (SYNs) count.
const (
	CounterDeliveredUDP = "delivered_udp"   // to the agent, under a lease
	CounterDeliveredTCP = "delivered_tcp"   //
	CounterHeardUDP     = "heard_udp"       // of these, what passed the host's own filters too
	CounterHeardTCP     = "heard_tcp"       //
	CounterFallbackUDP  = "fallback_udp"    // given back the cluster DNS address
	CounterFallbackTCP  = "fallback_tcp"    //
	CounterProbe        = "probe"           // the prober's own
	CounterHostUDP      = "host_udp"        // host processes' questions under node interception
	CounterHostTCP      = "host_tcp"        //
	CounterUplink       = "refused_uplink"  // from hosts beside the node: the cache is nobody's resolver. Given back
	CounterStranger     = "refused_source"  // from a source that does not live behind the link it came by. Given back
	CounterLeaseRenewal = "lease_datagrams" // control datagrams of the agent
)

// Counter is a named counter's value; see the Counter names for what one packet means.
type Counter struct{ Packets, Bytes uint64 }
