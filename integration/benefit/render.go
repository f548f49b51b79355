package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// report is all that a run found.
type report struct {
	Taken   time.Time
	Machine string
	Rounds  int
	Rate    int
	Length  time.Duration
	Away    time.Duration
	Loss    int
	Cases   []result
}

// busy is how late lookups may begin before the page has a warning.
const busy = 20 * time.Millisecond

// conditions states in words what was measured.
func (r report) conditions() string {
	late := time.Duration(0)
	for _, c := range r.Cases {
		late = max(late, c.Without.Late, c.With.Late)
	}
	text := fmt.Sprintf("%s, on %s. Medians of %d interleaved rounds of %v each, %d lookups a second from one pod, A and AAAA at once from a new\n"+
		"socket for each; kube-proxy in iptables mode, a kube-dns of %d replicas %v away. A lookup without both answers within a second\n"+
		"counts as missed, and as %v in the times: so long a pod's resolver (glibc) waits before it asks again.\n",
		r.Taken.Format(time.DateOnly), r.Machine, r.Rounds, r.Length, r.Rate, replicas, r.Away, retryAfter)
	if late > busy {
		text += fmt.Sprintf("The machine was busy: lookups began up to %s late, which is in their times.\n", duration(late))
	}
	return text
}

// markdown is the table.
func (r report) markdown() string {
	var b strings.Builder
	b.WriteString(r.conditions())
	for _, c := range r.Cases {
		fmt.Fprintf(&b, "\n| %s | without neardns | with neardns |\n| --- | ---: | ---: |\n", c.Title)
		row := func(what string, of func(summed) string) {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", what, of(c.Without), of(c.With))
		}
		row("lookups missed (worst round)", func(s summed) string {
			return fmt.Sprintf("%s (%s) of %d", share(s.Missed, s.Lookups), share(s.Worst, s.Lookups), s.Lookups)
		})
		for k, p := range points() {
			row(pointName(p), func(s summed) string { return duration(s.Times[k]) })
		}
		row("conntrack entries at the end", func(s summed) string { return strconv.Itoa(s.Entries) })
		row("packets that raced: dropped, saved", func(s summed) string { return fmt.Sprintf("%d, %d", s.Lost, s.Clashed) })
	}
	return b.String()
}

func share(n, of int) string {
	if n == 0 || of == 0 {
		return "0 %"
	}
	return strconv.FormatFloat(100*float64(n)/float64(of), 'f', 2, 64) + " %"
}

func pointName(p float64) string {
	switch p {
	case 0.5:
		return "median lookup"
	case 1:
		return "slowest lookup"
	}
	return "p" + strconv.FormatFloat(100*p, 'f', -1, 64)
}

// duration is a time with two digits that count.
func duration(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	switch {
	case ms >= 1000:
		return strconv.FormatFloat(ms/1000, 'f', 1, 64) + " s"
	case ms >= 10:
		return strconv.FormatFloat(ms, 'f', 0, 64) + " ms"
	case ms >= 1:
		return strconv.FormatFloat(ms, 'f', 1, 64) + " ms"
	}
	return strconv.FormatFloat(ms, 'f', 2, 64) + " ms"
}

// The plots' axis: ten microseconds to ten seconds, by powers of ten.
const (
	axisFrom = 10 * time.Microsecond
	decades  = 6
)

// along is where a time stands on the axis, 0 to 1.
func along(d time.Duration) float64 {
	if d <= axisFrom {
		return 0
	}
	return min(1, math.Log10(float64(d)/float64(axisFrom))/decades)
}

// plot is the times and entries as bars of text.
func (r report) plot() string {
	const width = 48
	var b strings.Builder
	bar := func(name, who, mark, value string, length float64) {
		n := int(math.Round(length * width))
		fmt.Fprintf(&b, "%14s %-8s|%-*s| %s\n", name, who, width, strings.Repeat(mark, n), value)
	}
	for _, c := range r.Cases {
		fmt.Fprintf(&b, "\n%s (10 µs to 10 s, each sixth of the bar ten times as long)\n", c.Title)
		for k, p := range points() {
			bar(pointName(p), "without", "░", duration(c.Without.Times[k]), along(c.Without.Times[k]))
			bar("", "with", "█", duration(c.With.Times[k]), along(c.With.Times[k]))
		}
		most := float64(max(c.Without.Entries, c.With.Entries, 1))
		bar("conntrack", "without", "░", strconv.Itoa(c.Without.Entries)+" entries", float64(c.Without.Entries)/most)
		bar("", "with", "█", strconv.Itoa(c.With.Entries)+" entries", float64(c.With.Entries)/most)
	}
	return b.String()
}
