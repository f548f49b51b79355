package main

import (
	"slices"
	"time"

	"github.com/neardns/neardns/integration/bench/generator"
	"github.com/neardns/neardns/integration/bench/paired"
	"github.com/neardns/neardns/integration/bench/workload"
)

// The kernel's numbers of the CPUs. The upstream, which is this process, runs where it can.
const (
	serverCPU = 0
	clientCPU = 1
)

// seed of the workloads: every run sends the same.
const seed = 1

// window is how many queries are in flight at full speed, on all sockets together.
const window = 64

// measure is one way of sending a workload.
type measure struct {
	key, text   string
	rate        int
	window      int // queries in flight on all sockets, where there is no rate
	sockets     int // 0: the workload's
	cpu         int // of the client
	full, short time.Duration
	only        string // in a short run: of this workload alone
	figures     []string
}

var percentiles = []string{"p50", "p90", "p99", "p99.9"}

// measures of each workload, in the order of the report.
var measures = []measure{
	{key: "full", text: "full speed, client and server on a core each", window: window, sockets: 2, cpu: clientCPU, full: time.Second, short: 150 * time.Millisecond, figures: []string{"qps", "server", "node", "hit", "lost"}},
	{key: "shared", text: "full speed, client and server on one core", window: window, sockets: 2, cpu: serverCPU, full: time.Second, short: 150 * time.Millisecond, only: "W1", figures: []string{"qps", "lost"}},
	{key: "one", text: "one in flight", window: 1, sockets: 1, cpu: clientCPU, full: 2 * time.Second, short: 200 * time.Millisecond, only: "W1", figures: percentiles},
	{key: "100", text: "100 a second", rate: 100, cpu: clientCPU, full: 3 * time.Second, short: 250 * time.Millisecond, only: "W1", figures: slices.Concat([]string{"server", "node", "hit", "lost"}, percentiles)},
	{key: "1k", text: "1,000 a second", rate: 1000, cpu: clientCPU, full: 4 * time.Second, short: 200 * time.Millisecond, figures: slices.Concat([]string{"server", "node", "hit", "lost"}, percentiles)},
	{key: "10k", text: "10,000 a second", rate: 10_000, cpu: clientCPU, full: 3 * time.Second, short: 200 * time.Millisecond, only: "W1", figures: slices.Concat([]string{"server", "node", "hit", "lost"}, percentiles)},
}

// query sends every server every workload in every way, round by round, in an order that turns.
func (b *bench) query(stands []*stand) {
	for round := range b.queryRounds() {
		order := turned(stands, round)
		for _, name := range b.workloads {
			w, err := workload.New(name, seed, b.short)
			b.must(err)
			b.quiet(stands)
			for _, s := range order {
				if sends(name, s.name) {
					b.workload(s, w)
				}
			}
		}
		b.idle(caches(stands))
		if slices.Contains(b.parts, "dnsperf") {
			for _, s := range caches(order) {
				b.dnsperf(s)
			}
		}
		b.t.Logf("round %d of %d", round+1, b.queryRounds())
	}
	b.drawn()
	for _, s := range stands {
		b.Questions = append(b.Questions, questions{s.name, s.answered, s.lost, s.wrong})
		if s.again > 0 {
			b.remark("%d runs of %s were made again, because most of their queries had no answer.", s.again, s.name)
		}
		if s.wrong > 0 {
			b.remark("%s gave %d wrong answers. The first: %s.", s.name, s.wrong, s.firstWrong)
		}
	}
}

// queryRounds is how often every server is queried. Six rounds are the least whose interval holds the median with 95 %.
func (b *bench) queryRounds() int {
	if b.short {
		return min(b.rounds, paired.Least)
	}
	return b.rounds
}

// turned is a different order for each round: every server is first, second and so on in turn, and has both neighbours.
func turned[T any](all []T, round int) []T {
	out := make([]T, 0, len(all))
	for i := range all {
		out = append(out, all[(i+round)%len(all)])
	}
	if round%2 == 1 {
		slices.Reverse(out)
	}
	return out
}

// workload sends one server one workload in all ways, warm.
func (b *bench) workload(s *stand, w *workload.Workload) {
	if !workload.OnlyNew(w.Name) {
		b.warm(s, generator.Load{Workload: w.Name, Seed: seed, Small: b.short, Each: true, Sockets: 2, Window: 16})
	}
	for _, m := range measures {
		if b.short && m.only != "" && m.only != w.Name || workload.OnlyNew(w.Name) && m.rate > 1000 {
			continue
		}
		b.take(w.Name, m, s, s.measured(b.load(m, w)))
	}
	if w.Restart {
		b.restart(s, w)
	}
}

func (b *bench) load(m measure, w *workload.Workload) generator.Load {
	l := generator.Load{Workload: w.Name, Seed: seed, Small: b.short, Rate: m.rate, Sockets: m.sockets, CPU: 1 + m.cpu, Duration: b.long(m.full, m.short)}
	if m.key == "full" || m.key == "shared" {
		if w.Sockets != workload.Sockets {
			l.Sockets = w.Sockets
		}
		l.Window = max(1, m.window/l.Sockets)
		if workload.OnlyNew(w.Name) {
			l.Window /= 2 // a miss takes a place in the server for as long as the upstream takes
		}
	} else if m.rate == 0 {
		l.Window = m.window
	}
	return l
}

// take takes the figures of one run in.
func (b *bench) take(workloadName string, m measure, s *stand, r outcome) {
	perAnswer := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 / float64(r.Answered) }
	all := r.Took * time.Duration(r.Machine.CPUs)
	b.Noise.heard(all, max(0, all-r.Machine.Idle-r.CPU-sum(r.Ran)), r.Machine.Steal)
	values := map[string]float64{
		"qps": float64(r.Answered) / r.Took.Seconds(), "server": perAnswer(r.Ran[0]), "node": perAnswer(r.CPU + sum(r.Ran[:b.node])),
		"hit": 100 * (1 - min(1, float64(r.misses)/float64(r.Asked))), "lost": unanswered(r.Result),
	}
	for figure, share := range map[string]float64{"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999} {
		values[figure] = float64(r.Times.At(share).Nanoseconds()) / 1e3
	}
	for _, f := range m.figures {
		if f == "server" && s.name == bare {
			continue
		}
		b.add(cellKey{workloadName, m.key, f}, s.name, values[f])
	}
	if s.name == inKernel && m.key == "full" && !workload.OnlyNew(workloadName) {
		b.add(cellKey{workloadName, m.key, "kernel"}, s.name, 100*float64(r.kernel)/float64(max(1, int64(r.Asked)-r.misses)))
	}
	b.heard(cellKey{workloadName, m.key, ""}, s.name, &r.Times)
	if m.rate > 0 {
		b.Noise.lag.Merge(&r.Lag)
	}
}

// unanswered is the share of queries without a right answer, in percent.
func unanswered(r *generator.Result) float64 {
	return 100 * float64(r.Lost+r.Failed+r.Wrong) / float64(r.Asked)
}

// restart sends 1,000 queries per second while the server ends and restarts, and reports what that cost.
func (b *bench) restart(s *stand, w *workload.Workload) {
	length := b.long(2*time.Second, time.Second)
	type outcome struct {
		r   *generator.Result
		err error
	}
	done := make(chan outcome, 1)
	run := s.prepare(generator.Load{Workload: w.Name, Seed: seed, Small: b.short, Rate: 1000, CPU: 1 + clientCPU, Duration: length})
	go func() {
		r, err := run()
		done <- outcome{r, err}
	}()
	b.rest(length / 4)
	s.down()
	s.up()
	o := <-done
	b.must(o.err)
	b.add(cellKey{w.Name, "restart", "lost"}, s.name, unanswered(o.r))
	b.add(cellKey{w.Name, "restart", "p99"}, s.name, float64(o.r.Times.At(0.99).Nanoseconds())/1e3)
}
