package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"

	"github.com/neardns/neardns/integration/bench/generator"
)

// latency is how long a server's answers to W1 took, all rounds together.
type latency struct {
	latencyOf
	Answers int `json:"answers"`
	// Times are, in microseconds, what the shares of shareOf do not exceed. The last is of the last ten answers.
	Times []float64 `json:"times"`
}

type latencyOf struct {
	Measure string `json:"measure"`
	Server  string `json:"server"`
}

// The picture's distributions, in its order.
var distributions = []struct{ measure, text string }{{"one", "one in flight"}, {"1k", "1,000 a second"}, {"10k", "10,000 a second"}}

// nines is how many steps there are from one nine to the next.
const nines = 20

// shareOf is the share of answers of a place in latency.Times: 0, then so that as many places are between 90 and 99 % as between 99 and
// 99.9 %.
func shareOf(i int) float64 { return 1 - math.Pow(10, -float64(i)/nines) }

// heard takes a run's answers in, where they are drawn.
func (r *report) heard(k cellKey, server string, times *generator.Histogram) {
	of := latencyOf{k.Measure, server}
	if k.Workload != "W1" || !slices.ContainsFunc(distributions, func(d struct{ measure, text string }) bool { return d.measure == of.Measure }) {
		return
	}
	if r.heardOf == nil {
		r.heardOf = map[latencyOf]*generator.Histogram{}
	}
	if r.heardOf[of] == nil {
		r.heardOf[of] = &generator.Histogram{}
	}
	r.heardOf[of].Merge(times)
}

// drawn makes latencies of all that was heard.
func (r *report) drawn() {
	for _, d := range distributions {
		for _, s := range r.servers() {
			of := latencyOf{d.measure, s}
			h := r.heardOf[of]
			if h == nil || h.Count() == 0 {
				continue
			}
			l := latency{latencyOf: of, Answers: h.Count()}
			for i := 0; i == 0 || float64(h.Count())*(1-shareOf(i)) >= 10; i++ {
				l.Times = append(l.Times, round(float64(h.At(max(shareOf(i), 1/float64(h.Count()))).Nanoseconds())/1e3))
			}
			r.Latencies = append(r.Latencies, l)
		}
	}
}

// Measures of the picture of distributions, in its own units.
const (
	curvesLeft   = 60
	curvesWidth  = 640
	curvesHeight = 220
	curvesBelow  = 50 // for the axis
)

// Colours of the other servers' curves; they are named where they end, too.
var curveColours = []string{"#d55e00", "#e69f00", "#cc79a7", "#009e73", "#999999", "#000000", "#f0e442"}

// curves draws the distributions: time across, logarithmic, and the share of answers upward so that the tail has as much room as the rest.
func (r *report) curves() string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	least, most, deep := math.Inf(1), 0.0, 0
	for _, l := range r.Latencies {
		least, most, deep = min(least, l.Times[0]), max(most, l.Times[len(l.Times)-1]), max(deep, len(l.Times)-1)
	}
	least, most = math.Pow(10, math.Floor(math.Log10(max(least, 1)))), math.Pow(10, math.Ceil(math.Log10(most)))
	deep = (deep + nines - 1) / nines * nines
	across := func(us float64) float64 {
		return curvesLeft + curvesWidth*math.Log(max(us, least)/least)/math.Log(most/least)
	}
	height := 50 + len(distributions)*(curvesHeight+curvesBelow)
	p(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="12">`, svgWidth, height)
	p(`<rect width="100%%" height="100%%" fill="white"/>`)
	p(`<text x="10" y="22" font-size="16">Time of an answer, W1 (across: time, logarithmic; upward: share of answers)</text>`)
	p(`<text x="10" y="40" fill="#555">%s</text>`, html.EscapeString(r.Taken.Format("2006-01-02")+", "+r.Machine))
	if r.Noise.busy() {
		p(`<text x="500" y="40" fill="%s" font-weight="bold">Taken on a busy machine: no result.</text>`, colourWorse)
	}
	for i, d := range distributions {
		top := 60 + i*(curvesHeight+curvesBelow)
		up := func(place int) float64 { return float64(top) + curvesHeight*(1-float64(place)/float64(deep)) }
		p(`<text x="%d" y="%d" font-weight="bold">%s</text>`, curvesLeft+4, top+14, html.EscapeString(d.text))
		for n := 0; n <= deep; n += nines {
			p(`<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end" font-size="10">%s %%</text>`,
				curvesLeft, up(n), curvesLeft+curvesWidth, curvesLeft-4, up(n)+4, fmt.Sprintf("%.6g", 100*shareOf(n)))
		}
		for us := least; us <= most*1.001; us *= 10 {
			p(`<path d="M%.1f %dv%d" stroke="#ddd"/><text x="%.1f" y="%d" text-anchor="middle" font-size="10">%s</text>`,
				across(us), top, curvesHeight, across(us), top+curvesHeight+14, timeText(us))
		}
		other := 0
		for j, s := range r.servers() {
			colour, wide, dash := colourOurs, 2.5, ""
			switch {
			case s == inKernel:
				wide = 4
			case s == plain:
				dash = ` stroke-dasharray="5 3"`
			case !isOurs(s):
				colour, wide, other = curveColours[other%len(curveColours)], 1.5, other+1
			}
			p(`<path d="M%d %dh20" stroke="%s" stroke-width="%.1f"%s/><text x="%d" y="%d">%s</text>`, curvesLeft+curvesWidth+12, top+10+j*18, colour, wide, dash,
				curvesLeft+curvesWidth+38, top+14+j*18, html.EscapeString(s))
			at := slices.IndexFunc(r.Latencies, func(l latency) bool { return l.latencyOf == latencyOf{d.measure, s} })
			if at < 0 {
				continue
			}
			var path strings.Builder
			for place, us := range r.Latencies[at].Times {
				fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(place, 1)], across(us), up(place))
			}
			p(`<path d="%s" fill="none" stroke="%s" stroke-width="%.1f"%s/>`, path.String(), colour, wide, dash)
		}
	}
	return b.String() + "</svg>\n"
}

// timeText prints a power of ten of microseconds.
func timeText(us float64) string {
	switch {
	case us >= 0.999e6:
		return fmt.Sprintf("%.0f s", us/1e6)
	case us >= 0.999e3:
		return fmt.Sprintf("%.0f ms", us/1e3)
	}
	return fmt.Sprintf("%.0f µs", us)
}
