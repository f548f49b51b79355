package main

import (
	"time"

	"github.com/neardns/neardns/integration/faults/load"
)

// tail is the end of a log.
func tail(log string) string {
	if n := len(log) - 4000; n > 0 {
		return "…" + log[n:]
	}
	return log
}

const (
	keptFor = 31 * time.Second // kube-dns's answers, with a second for rounding
	// freshFor is how long after it began to be filled a cache is good for another fault: the longest that looks for its names lasts 11 s.
	freshFor = 15 * time.Second
)

// fill has the cache query all names, so that all were queried before. With refill, it waits until those of the last time have expired: the
// cache answers them from what it has, and they keep their age. Other names would not help, because a cache keeps those that are in use.
func (s *stand) fill(refill bool) {
	s.t.Helper()
	age := time.Since(s.filled)
	if age < freshFor && s.kept() >= 0.99 {
		return
	}
	if refill && age < keptFor && s.name != unbound { // which keeps kube-dns's answers for their hour
		<-time.After(keptFor - age)
	}
	rate := 10_000
	if s.name == "ours" {
		rate /= 2 // what is beyond the misses that one pod may have in flight is shed
	}
	fill := load.Plan{Duration: time.Second * filled / time.Duration(rate), Streams: []load.Stream{
		s.stream(load.Stream{Name: "fill", Way: load.UDP, Label: fillLabel, Zone: fillZone, Names: filled, Rate: rate, Sockets: 20}),
		s.stream(load.Stream{Name: "hot", Way: load.UDP, Label: hotLabel, Zone: hotZone, Names: hot, Rate: hot, Sockets: 20}),
	}}
	begun := time.Now()
	for range 6 {
		books := s.ask(fill)
		if sum := books["fill"].All(); sum.Missed() < filled/100 && books["hot"].All().Missed() == 0 {
			s.filled = begun
			return
		}
	}
	s.t.Logf("%s: the cache could not be filled at %d questions a second", s.name, rate)
}

// kept is the share of a sample of the filled names that the cache answers without querying kube-dns.
func (s *stand) kept() float64 {
	s.t.Helper()
	const rate = 4000
	before := s.filler.Load()
	// Another part each time: what this looks up is in the cache from then on.
	s.sample = (s.sample + sampled) % (filled - sampled)
	b := s.ask(load.Plan{Duration: time.Second * sampled / rate, Streams: []load.Stream{
		s.stream(load.Stream{Name: "kept", Way: load.UDP, Label: fillLabel, Zone: fillZone, First: s.sample, Names: sampled, Rate: rate, Sockets: 20}),
	}})["kept"]
	sum := b.All()
	return max(0, float64(sum.Cache)-float64(s.filler.Load()-before)) / float64(sum.Sent)
}
