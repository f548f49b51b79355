package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/neardns/neardns/integration/bench/generator"
	"github.com/neardns/neardns/integration/bench/paired"
)

// noise is what else the machine did while it was measured.
type noise struct {
	// Others is the share of all CPUs that other processes ran or the hypervisor took: the median of all runs, and what nine
	// of ten stayed below. The kernel counts it in steps of 10 ms, so that of a short run it shows little, and of all much.
	Others   float64       `json:"others"`
	OthersTo float64       `json:"othersTo"`
	Steal    float64       `json:"steal"`   // the hypervisor's part of it, of the whole time
	LagP99   time.Duration `json:"lagP99"`  // by how much the generator itself was late at fixed rates
	Waited   time.Duration `json:"waited"`  // for a quiet machine
	Unquiet  int           `json:"unquiet"` // how often it did not become quiet in time

	shares     []float64
	all, stole time.Duration
	lag        generator.Histogram
}

// heard takes one run in: the time of all CPUs, and what others had of it.
func (n *noise) heard(all, others, steal time.Duration) {
	n.shares = append(n.shares, float64(others)/float64(all))
	n.all, n.stole = n.all+all, n.stole+steal
}

// sumUp is called once, after the last run.
func (n *noise) sumUp() {
	if len(n.shares) == 0 {
		return
	}
	n.Others = round(paired.Middle(n.shares))
	slices.Sort(n.shares)
	n.OthersTo = round(n.shares[len(n.shares)*9/10])
	n.Steal = round(float64(n.stole) / float64(n.all))
	n.LagP99 = n.lag.At(0.99)
	n.Waited = n.Waited.Round(time.Second)
}

// busy reports whether the figures are of a machine that had other work.
func (n *noise) busy() bool { return n.Others > quietShare || n.Unquiet > 0 }

func (n *noise) String() string {
	text := fmt.Sprintf("Other processes and the hypervisor used %.0f %% of the CPUs (the median of all runs; in nine of ten at most %.0f %%; steal %.1f %%). "+
		"The generator sent 99 %% of the queries at fixed rates at most %s late. The run waited %v for a quiet machine.",
		100*n.Others, 100*n.OthersTo, 100*n.Steal, micros(float64(n.LagP99.Nanoseconds())/1e3), n.Waited)
	if n.busy() {
		return "**Taken on a busy machine: these figures are no result.** " + text
	}
	return "Taken on a quiet machine. " + text
}

// micros prints a time given in microseconds.
func micros(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.1f s", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.0f ms", v/1e3)
	case v >= 1e3:
		return fmt.Sprintf("%.1f ms", v/1e3)
	case v >= 100:
		return fmt.Sprintf("%.0f µs", v)
	}
	return fmt.Sprintf("%.1f µs", v)
}
