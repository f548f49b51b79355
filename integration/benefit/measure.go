package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"github.com/neardns/neardns/integration/faults/load"
	"github.com/neardns/neardns/pkg/testutil"
)

// retryAfter is what a lookup without both answers costs a pod: the resolver of glibc waits so long before it sends its query again, as
// resolv.conf's option timeout has it by default (resolv.conf(5)).
const retryAfter = 5 * time.Second

// patience is how long the load waits for answers. What comes later would be late by any measure.
const patience = time.Second

// points are the shares of the lookups whose time is reported.
func points() []float64 { return []float64{0.5, 0.9, 0.95, 0.99, 0.999, 1} }

// round is one run on one stand.
type round struct {
	Lookups int
	Missed  int             // without both right answers within the patience
	Times   []time.Duration // at each of points; a missed one counts as retryAfter
	Entries int             // conntrack's, for DNS, when the run had ended
	Lost    int             // packets that conntrack dropped for another one's entry
	Clashed int             // packets that it could save from that
	Late    time.Duration   // the most that a lookup began after it was due: the machine's doing
}

// summed is what all rounds of one stand say: the median of each figure, and the worst.
type summed struct {
	round
	Worst int // missed in the worst round; Late is that of the worst, too
	All   int // lookups in all rounds
}

// result is one case, side by side.
type result struct {
	Title         string
	Without, With summed
}

// measure runs all cases, round by round, the two stands in turn.
func measure(t testutil.TB, o *options, progress io.Writer) []result {
	dir, err := os.MkdirTemp("", "neardns-benefit-")
	if err != nil {
		t.Fatalf("make folder: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	stands := []*stand{newStand(t, o, dir, false), newStand(t, o, dir, true)}
	cases := []struct {
		title string
		loss  int
	}{
		{"A and AAAA at once from one socket", 0},
		{fmt.Sprintf("the same, %d %% of UDP to kube-dns lost", o.loss), o.loss},
	}
	results := make([]result, len(cases))
	for k, c := range cases {
		results[k].Title = c.title
		var rounds [2][]round
		for i := range o.rounds {
			for j, s := range stands {
				r := s.round(o, c.loss)
				rounds[j] = append(rounds[j], r)
				fmt.Fprintf(progress, "%s, round %d, %s: %d of %d missed, p99 %s, %d entries\n", c.title, i+1, s.name, r.Missed, r.Lookups, duration(r.Times[3]), r.Entries)
			}
		}
		results[k].Without, results[k].With = sumUp(rounds[0]), sumUp(rounds[1])
	}
	return results
}

// names is how many a pod queries in turn.
const names = 500

// round queries every name once, so that the cache has it, as it has on a node that runs for a while, and then measures.
func (s *stand) round(o *options, loss int) round {
	plan := load.Plan{Duration: time.Second * names / time.Duration(o.rate), Streams: []load.Stream{{
		Name: "lookups", Way: load.Pair, Server: s.clusterDNS(), Label: "name", Zone: "ttl-60.benefit.svc.cluster.local", Names: names, Rate: o.rate, Patience: patience,
	}}}
	s.ask(plan)
	testutil.FlushConntrack(s.node.Host)
	s.lose(loss)
	before := s.tracking()
	plan.Duration = o.length
	book := s.ask(plan)
	after := s.tracking()
	s.lose(0)
	r := judge(book)
	r.Entries, r.Lost, r.Clashed = after.Entries, after.Lost-before.Lost, after.Clashed-before.Clashed
	return r
}

// judge makes a round of a book.
func judge(b *load.Book) round {
	sum := b.All()
	r := round{Lookups: sum.Sent, Missed: sum.Missed(), Late: b.Late}
	times := make([]time.Duration, 0, len(b.Took))
	for i, took := range b.Took {
		if o := load.Outcome(b.Outcomes[i]); o != load.Cache && o != load.Direct {
			took = retryAfter
		}
		times = append(times, took)
	}
	slices.Sort(times)
	for _, p := range points() {
		r.Times = append(r.Times, at(times, p))
	}
	return r
}

// at is the smallest of the sorted values that at least a share p of them does not exceed (nearest rank).
func at(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(int(math.Ceil(p*float64(len(sorted)))), 1)-1]
}

func sumUp(rounds []round) summed {
	var s summed
	figure := func(of func(round) int) int {
		var all []int
		for _, r := range rounds {
			all = append(all, of(r))
		}
		slices.Sort(all)
		return all[(len(all)-1)/2]
	}
	s.Lookups = figure(func(r round) int { return r.Lookups })
	s.Missed = figure(func(r round) int { return r.Missed })
	s.Entries = figure(func(r round) int { return r.Entries })
	s.Lost = figure(func(r round) int { return r.Lost })
	s.Clashed = figure(func(r round) int { return r.Clashed })
	for k := range points() {
		s.Times = append(s.Times, time.Duration(figure(func(r round) int { return int(r.Times[k]) })))
	}
	for _, r := range rounds {
		s.All += r.Lookups
		s.Worst, s.Late = max(s.Worst, r.Missed), max(s.Late, r.Late)
	}
	return s
}
