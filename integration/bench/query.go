package main

import (
	"slices"
	"time"
)

const (
	queryPart = "Queries from a pod: agent beside a stock CoreDNS set up as NodeLocal DNSCache"
	hitNames  = 160
)

// query asks both servers from a pod of their node, through the pod's veth and all rules, and counts the CPU time that the
// server's process takes per answer.
func (b *bench) query(ours, stock *stand) {
	kinds := []struct {
		name  string
		limit float64
		load  load
	}{
		{"hit, at full speed", 1, load{Names: hitNames, Sockets: 2, Window: 16, Duration: b.long(1600 * time.Millisecond)}},
		{"hit, 2,000 a second", 1, load{Names: hitNames, Sockets: 2, Rate: 2000, Duration: b.long(2 * time.Second)}},
		{"miss, at full speed", 1, load{Unique: 1, Sockets: 2, Window: 16, Duration: b.long(1200 * time.Millisecond)}},
		{"miss, 1,000 a second", 1, load{Unique: 1, Sockets: 2, Rate: 1000, Duration: b.long(2 * time.Second)}},
	}
	type figures struct{ server, both, rate, p50, p99 []float64 }
	got := map[*stand][]figures{ours: make([]figures, len(kinds)), stock: make([]figures, len(kinds))}
	idle := map[*stand][]float64{}
	warm := load{Names: hitNames, Sockets: 2, Window: 16, Duration: time.Second}
	ours.ask(warm)
	stock.ask(warm)
	for round := range b.rounds {
		order := []*stand{ours, stock}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for i, k := range kinds {
			for _, s := range order {
				before := s.cpu()
				r := s.ask(k.load)
				perAnswer := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 / float64(r.Answered) }
				server, f := s.cpu()-before, &got[s][i]
				f.server = append(f.server, perAnswer(server))
				f.both = append(f.both, perAnswer(server+r.CPU))
				f.rate = append(f.rate, float64(r.Answered)/r.Took.Seconds())
				f.p50 = append(f.p50, float64(r.P50.Microseconds()))
				f.p99 = append(f.p99, float64(r.P99.Microseconds()))
			}
		}
		before := map[*stand]time.Duration{ours: ours.cpu(), stock: stock.cpu()}
		begun := time.Now()
		b.rest(b.long(2 * time.Second))
		for _, s := range order {
			idle[s] = append(idle[s], 100*float64(s.cpu()-before[s])/float64(time.Since(begun)))
		}
	}
	for i, k := range kinds {
		o, t := got[ours][i], got[stock][i]
		b.compare(queryPart, k.name+": server's CPU per answer", "CoreDNS", "us", o.server, t.server, k.limit)
		b.compare(queryPart, k.name+": server's and client's CPU per answer", "CoreDNS", "us", o.both, t.both, 0)
		if k.load.Rate == 0 {
			b.compare(queryPart, k.name+": answers per second", "CoreDNS", "/s", o.rate, t.rate, 0)
		} else {
			b.compare(queryPart, k.name+": median time", "CoreDNS", "us", o.p50, t.p50, 0)
			b.compare(queryPart, k.name+": 99th percentile", "CoreDNS", "us", o.p99, t.p99, 0)
		}
	}
	b.compare(queryPart, "nobody asks: CPU, percent of one", "CoreDNS", "%", idle[ours], idle[stock], 0)
}
