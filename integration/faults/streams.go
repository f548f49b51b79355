package main

import (
	"net/netip"
	"time"

	"github.com/neardns/neardns/integration/faults/load"
	"github.com/neardns/neardns/pkg/testutil"
)

// muslWaits is how long musl's resolver library waits before it sends its query again: the least patient of those in pods.
const muslWaits = 2500 * time.Millisecond

// noCache is why most faults are not tried with bare.
const noCache = "no cache that it could befall"

const noHandOver = "no hand-over: its DaemonSet stops the old one first, see SIGTERM"

func handOver(_ testutil.TB, bin func(string) string) string {
	if !handsOver(bin("neardns-agent")) {
		return "this agent has no --take-over"
	}
	return ""
}

// usual is the load of most faults: 1,000 queries per second over 20 UDP sockets, 200 over TCP, half of them on
// connections of their own.
func usual(s *stand) []load.Stream {
	names := load.Stream{Label: hotLabel, Zone: hotZone, Names: hot}
	udp, one, long := names, names, names
	udp.Name, udp.Way, udp.Rate, udp.Sockets = "udp", load.UDP, 1000, 20
	one.Name, one.Way, one.Rate = "tcp", load.OneShot, 100
	long.Name, long.Way, long.Rate, long.Sockets = "tcplong", load.Long, 100, 10
	return []load.Stream{s.stream(udp), s.stream(one), s.stream(long)}
}

// controlName is the stream's that shows what the machine loses by itself.
const controlName = "control"

// control queries kube-dns's own address as often as the usual load queries over UDP: no fault of the cache's is in its way.
func control(s *stand) load.Stream {
	c := s.stream(load.Stream{Name: controlName, Way: load.UDP, Label: "control", Zone: hotZone, Names: hot, Rate: 1000, Sockets: 20})
	c.Server = netip.AddrPortFrom(s.node.KubeDNSAddrs()[0], 53)
	return c
}

// hits is the usual load, of names that the cache has just been queried and keeps, next to some that no client queried. In a
// full cache a few hits become misses even so: they are waited for, lest one of them costs those behind it their connection,
// and are not counted.
func hits(s *stand) []load.Stream {
	s.t.Helper()
	const names, patience = 100, 3 * time.Second
	first := 1_000_000 + s.fresh(names) // never queried: NodeLocal keeps nothing longer than 30 s from when it came
	s.ask(load.Plan{Duration: time.Second / 4, Streams: []load.Stream{
		s.stream(load.Stream{Name: "warm", Way: load.UDP, Label: fillLabel, Zone: fillZone, First: first, Names: names, Rate: 4 * names, Sockets: 4}),
	}})
	streams := usual(s)
	for i := range streams {
		streams[i].Label, streams[i].Zone, streams[i].First, streams[i].Names, streams[i].Patience = fillLabel, fillZone, first, names, patience
	}
	return append(streams, s.stream(load.Stream{Name: "unknown", Way: load.UDP, Label: "fresh", Zone: hotZone, First: s.fresh(1000), Rate: 20, Sockets: 4, Patience: patience}))
}
