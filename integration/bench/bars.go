package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// bars of hits in the kernel: of medians of paired ratios to the servers named.
var bars = []struct {
	text   string
	key    cellKey
	limits map[string]float64 // at least, of a figure of which more is better, and else at most
}{
	{"throughput on one core, client included", cellKey{"W1", "shared", "qps"}, map[string]float64{stock: 8, "unbound": 2}},
	{"one in flight: p50", cellKey{"W1", "one", "p50"}, map[string]float64{stock: 0.15, "unbound": 0.15}},
	{"one in flight: p99", cellKey{"W1", "one", "p99"}, map[string]float64{stock: 0.15, "unbound": 0.15}},
	{"1,000 a second: p99.9", cellKey{"W1", "1k", "p99.9"}, map[string]float64{stock: 0.10}},
	{"10,000 a second: p99.9", cellKey{"W1", "10k", "p99.9"}, map[string]float64{stock: 0.10}},
	{"1,000 a second: whole node's CPU per query", cellKey{"W1", "1k", "node"}, map[string]float64{stock: 0.25}},
	{"10,000 a second: whole node's CPU per query", cellKey{"W1", "10k", "node"}, map[string]float64{stock: 0.25}},
}

// kernelShares are the workloads of whose hits the kernel is to answer at least kernelShare percent.
var kernelShares = []string{"W1", "W2", "W5", "W6"}

const kernelShare = 95

// kernelTable holds hits in the kernel to what they are to be; "" where they were not measured.
func (r *report) kernelTable() string {
	if !slices.Contains(r.servers(), inKernel) {
		return ""
	}
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("| figure | %s | to %s | bar | to unbound | bar |\n| --- | ---: | ---: | ---: | ---: | ---: |", inKernel, stock)
	for _, bar := range bars {
		f := figureTexts[bar.key.Figure]
		line := fmt.Sprintf("| %s | %s |", bar.text, value(r.median(bar.key, inKernel), f))
		for _, s := range []string{stock, "unbound"} {
			limit, held := bar.limits[s]
			e := r.ratio(bar.key, inKernel, s)
			if e.N == 0 {
				line += " | |"
				continue
			}
			line += fmt.Sprintf(" %s |", e)
			if held {
				line += " " + barText(e.Median, limit, f.more)
			}
			line += " |"
		}
		p("%s", line)
	}
	p("\n| figure | %s | bar |\n| --- | ---: | ---: |", inKernel)
	for _, name := range kernelShares {
		if share := r.median(cellKey{name, "full", "kernel"}, inKernel); !math.IsNaN(share) {
			p("| %s, full speed: hits that the kernel answered, in percent | %.1f | %s |", name, share, barText(share, kernelShare, true))
		}
	}
	for _, w := range r.Rows {
		switch {
		case w.Part != kernelPart:
		case w.Than == "":
			p("| program's time per hit, in µs | %s | %s |", w.Ours, barText(w.Ours.Median, w.Limit, false))
		default:
			p("| program's time per hit, %s to %s | %s | %s |", w.Subject, w.Than, w.Ratio, barText(w.Ratio.Median, w.Limit, false))
		}
	}
	return b.String()
}

// barText is a bar and whether a median meets it.
func barText(median, limit float64, more bool) string {
	sign, met := "≤", median <= limit
	if more {
		sign, met = "≥", median >= limit
	}
	if met {
		return fmt.Sprintf("%s %g: met", sign, limit)
	}
	return fmt.Sprintf("%s %g: missed", sign, limit)
}
