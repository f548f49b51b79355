package main

import (
	"slices"
	"time"
)

const (
	queryPart = "Queries from a pod: agent beside a stock CoreDNS set up as NodeLocal DNSCache"
	hitNames  = 160
	turns     = 4 // of each server, in one round of one kind
)

// query asks both servers from a pod of their node, through the pod's veth and all rules, and counts the CPU time that the
// server's process takes per answer. A round of one kind is several short turns of each server, in the order ABBABAAB.
func (b *bench) query(ours, stock *stand) {
	kinds := []struct {
		name  string
		limit float64
		load  load
	}{
		{"hit, at full speed", 1, load{Names: hitNames, Sockets: 2, Window: 16, Duration: b.long(400 * time.Millisecond)}},
		{"hit, 2,000 a second", 0, load{Names: hitNames, Sockets: 2, Rate: 2000, Duration: b.long(400 * time.Millisecond)}},
		{"miss, at full speed", 1, load{Unique: 1, Sockets: 2, Window: 16, Duration: b.long(400 * time.Millisecond)}},
		{"miss, 1,000 a second", 0, load{Unique: 1, Sockets: 2, Rate: 1000, Duration: b.long(400 * time.Millisecond)}},
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
			server, sum := map[*stand]time.Duration{}, map[*stand]*result{ours: {}, stock: {}}
			for turn := range turns {
				for j := range order {
					s := order[(j+(turn+1)/2)%2]
					before := s.cpu()
					r := s.ask(k.load)
					server[s] += s.cpu() - before
					sum[s].add(r)
				}
			}
			for _, s := range order {
				r, f := sum[s], &got[s][i]
				perAnswer := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 / float64(r.Answered) }
				f.server = append(f.server, perAnswer(server[s]))
				f.both = append(f.both, perAnswer(server[s]+r.CPU))
				f.rate = append(f.rate, float64(r.Answered)/r.Took.Seconds())
				f.p50 = append(f.p50, float64(r.P50.Microseconds())/turns)
				f.p99 = append(f.p99, float64(r.P99.Microseconds())/turns)
			}
		}
		before := map[*stand]time.Duration{ours: ours.cpu(), stock: stock.cpu()}
		begun := time.Now()
		b.rest(b.long(2 * time.Second))
		for _, s := range order {
			idle[s] = append(idle[s], 100*float64(s.cpu()-before[s])/float64(time.Since(begun)))
		}
	}
	ours.trust()
	stock.trust()
	b.note("Questions lost: %d of %d (neardns), %d of %d (CoreDNS).", ours.lost, ours.lost+ours.answered, stock.lost, stock.lost+stock.answered)
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
	b.note("The agent's CPU holds its probing, which costs the same at every load: at a fixed rate it weighs more, and stands alone where nobody asks. Limits are for full speed.")
}
