package main

import (
	"fmt"
	"time"

	"github.com/neardns/neardns/integration/bench/paired"
	"github.com/neardns/neardns/pkg/testutil"
)

const memoryPart = "Memory of the agent beside a stock CoreDNS with NodeLocal's Corefile"

// memory starts both servers anew in each round and looks at them once they rest, empty and with 10,000 answers cached.
func (b *bench) memory(ours, stock *stand) {
	const entries = 10_000
	stands := []*stand{ours, stock}
	empty, full := map[*stand][]memory{}, map[*stand][]memory{}
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
			empty[s] = append(empty[s], b.memoryOf(s))
			s.ask(load{Unique: 1, Sockets: 2, Window: 16, Count: entries})
		}
		b.rest(time.Second)
		for _, s := range stands {
			full[s] = append(full[s], b.memoryOf(s))
		}
	}
	resident := func(m memory) float64 { return m.RSS }
	b.note("NodeLocal DNSCache's proposal (KEP-1024) was measured under a memory limit of 25 MiB, with the CoreDNS of 2018. Resident here: the agent %.1f MiB after its start and %.1f MiB with %d names cached, the stock CoreDNS, which has all of its plugins, %.1f and %.1f MiB.",
		paired.Median(pick(empty[ours], resident)).Median, paired.Median(pick(full[ours], resident)).Median, entries,
		paired.Median(pick(empty[stock], resident)).Median, paired.Median(pick(full[stock], resident)).Median)
	for _, at := range []struct {
		text string
		of   map[*stand][]memory
	}{{"after the start", empty}, {fmt.Sprintf("with %d names cached", entries), full}} {
		for _, kind := range []struct {
			text string
			of   func(memory) float64
		}{
			{"resident (RSS)", resident},
			{"proportional (PSS)", func(m memory) float64 { return m.PSS }},
			{"anonymous", func(m memory) float64 { return m.Anonymous }},
		} {
			b.compare(memoryPart, kind.text+" "+at.text, "CoreDNS", "MiB", pick(at.of[ours], kind.of), pick(at.of[stock], kind.of), 0)
		}
	}
}

func pick(from []memory, f func(memory) float64) []float64 {
	var out []float64
	for _, m := range from {
		out = append(out, f(m))
	}
	return out
}

func (b *bench) memoryOf(s *stand) memory {
	m, err := memoryOf(s.server.PID())
	b.must(err)
	return m
}

// rest waits until so much time has gone by, in which nobody asks anything.
func (b *bench) rest(d time.Duration) {
	until := time.Now().Add(d)
	testutil.Eventually(b.t, d+time.Minute, func() error {
		if time.Now().Before(until) {
			return fmt.Errorf("still resting")
		}
		return nil
	})
}
