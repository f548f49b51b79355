package main

import (
	"time"

	"github.com/neardns/neardns/integration/bench/generator"
	"github.com/neardns/neardns/integration/bench/procstat"
)

// memoryNames is how many names fill a cache. NodeLocal's Corefile has room for 9,984 of a kind.
const memoryNames = 10_000

// memory starts all servers again in each round and looks at them once they rest, empty and with b.names answers cached.
func (b *bench) memory(stands []*stand) {
	for range b.rounds {
		for _, s := range stands {
			s.down()
			s.server = s.start()
		}
		for _, s := range stands {
			s.await()
		}
		b.rest(time.Second)
		for _, s := range stands {
			b.remember(s, "start")
			s.ask(generator.Load{Workload: "memory", Names: b.names, Each: true, Sockets: 2, Window: 16})
		}
		b.rest(time.Second)
		for _, s := range stands {
			b.remember(s, "full")
		}
	}
}

func (b *bench) remember(s *stand, when string) {
	m, err := procstat.MemoryOf(s.server.PID())
	b.must(err)
	b.add(cellKey{memoryLoad, when, "RSS"}, s.name, m.RSS)
	b.add(cellKey{memoryLoad, when, "PSS"}, s.name, m.PSS)
	b.add(cellKey{memoryLoad, when, "anonymous"}, s.name, m.Anonymous)
}
