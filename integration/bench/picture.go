package main

import (
	"context"
	"fmt"
	"html"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/neardns/neardns/integration/bench/workload"
)

// The picture's measures, in its own units.
const (
	svgWidth  = 900
	nameWidth = 120
	barWidth  = 250
	barHeight = 12
	cellWidth = 108
)

// Colours that are distinguished without colour vision too (Okabe and Ito): ours, and the others in two shades for two bars.
const (
	colourOurs   = "#0072b2"
	colourOurs2  = "#56b4e9"
	colourOther  = "#999999"
	colourOther2 = "#cccccc"
	colourBetter = "#009e73"
	colourWorse  = "#d55e00"
)

// panel is one drawing of bars: every server with a bar for each key.
type panel struct {
	title string
	keys  []cellKey
	names []string // of the bars, where there are several
	log   bool
}

var panels = []panel{
	{"Server's CPU per answer (µs), full speed", []cellKey{{"W1", "full", "server"}, {workload.Miss, "full", "server"}}, []string{"W1, hits", "misses"}, false},
	{"Answers a second, W1", []cellKey{{"W1", "full", "qps"}, {"W1", "shared", "qps"}}, []string{"on two cores", "client and server on one"}, false},
	{"Whole node's CPU per answer (µs), W1", []cellKey{{"W1", "1k", "node"}, {"W1", "10k", "node"}}, []string{"1,000 a second", "10,000 a second"}, false},
	{"Time of an answer, W1 at 1,000 a second", []cellKey{{"W1", "1k", "p50"}, {"W1", "1k", "p99"}}, []string{"median", "p99"}, true},
	{"Time of an answer, W1, one in flight", []cellKey{{"W1", "one", "p50"}, {"W1", "one", "p99.9"}}, []string{"median", "p99.9"}, true},
	{"Resident memory (MiB)", []cellKey{{memoryLoad, "start", "RSS"}, {memoryLoad, "full", "RSS"}}, []string{"after the start", "10,000 names"}, false},
}

// pictures draws the report, and the distributions of times where there are any.
func (r *report) pictures(path, curves string) error {
	if err := draw(path, r.svg()); err != nil || len(r.Latencies) == 0 {
		return err
	}
	return draw(curves, r.curves())
}

// draw writes a picture as SVG, and as PNG next to it.
func draw(path, svg string) error {
	if err := os.WriteFile(path, []byte(svg), 0o644); err != nil {
		return fmt.Errorf("write the picture: %w", err)
	}
	png := strings.TrimSuffix(path, ".svg") + ".png"
	if text, err := exec.CommandContext(context.Background(), "rsvg-convert", "-o", png, path).CombinedOutput(); err != nil {
		return fmt.Errorf("draw %s (rsvg-convert is in Debian's librsvg2-bin): %w: %s", png, err, text)
	}
	return nil
}

func (r *report) svg() string {
	var b strings.Builder
	y := 62
	for i := 0; i < len(panels); i += 2 {
		for j, p := range panels[i:min(i+2, len(panels))] {
			b.WriteString(r.bars(p, 10+j*(svgWidth/2), y))
		}
		y += r.barsHeight()
	}
	for _, h := range []struct{ text, measure, figure string }{
		{"server's CPU per answer at full speed", "full", "server"}, {"99th percentile at 1,000 a second", "1k", "p99"},
	} {
		for _, subject := range r.subjects() {
			b.WriteString(r.heat(subject, h.text, h.measure, h.figure, 10, y))
			y += r.heatHeight()
		}
	}
	head := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="white"/>
<text x="10" y="22" font-size="16">neardns and other DNS caches on a node (bars: medians; less is better but for answers a second)</text>
<text x="10" y="40" fill="#555">%s</text>
`, svgWidth, y, html.EscapeString(r.Taken.Format("2006-01-02")+", "+r.Machine))
	if r.Noise.busy() {
		head += fmt.Sprintf(`<text x="10" y="56" fill="%s" font-weight="bold">Taken on a busy machine (others used %.0f %% of it): these figures are no result.</text>
`, colourWorse, 100*r.Noise.Others)
	}
	return head + b.String() + "</svg>\n"
}

func (r *report) barsHeight() int { return 52 + len(r.servers())*(2*barHeight+6) }

// bars draws one panel.
func (r *report) bars(panel panel, x, y int) string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	most, fewest := 0.0, math.Inf(1)
	for _, k := range panel.keys {
		for _, s := range r.servers() {
			if v := r.median(k, s); v > 0 {
				most, fewest = max(most, v), min(fewest, v)
			}
		}
	}
	if most == 0 {
		return ""
	}
	length := func(v float64) float64 {
		if panel.log { // from a third of the least on
			return barWidth * math.Log(3*v/fewest) / math.Log(3*most/fewest)
		}
		return barWidth * v / most
	}
	p(`<g transform="translate(%d %d)">`, x, y)
	scale := ""
	if panel.log {
		scale = ", logarithmic"
	}
	p(`<text x="0" y="14" font-weight="bold">%s%s</text>`, html.EscapeString(panel.title), scale)
	for j, name := range panel.names {
		p(`<rect x="%d" y="21" width="10" height="10" fill="%s"/><text x="%d" y="30" fill="#555">%s</text>`,
			nameWidth+j*130, []string{colourOther, colourOther2}[j], nameWidth+14+j*130, html.EscapeString(name))
	}
	for i, s := range r.servers() {
		top := 36 + i*(2*barHeight+6)
		p(`<text x="%d" y="%d" text-anchor="end">%s</text>`, nameWidth-6, top+barHeight+4, html.EscapeString(s))
		for j, k := range panel.keys {
			v := r.median(k, s)
			if math.IsNaN(v) {
				continue
			}
			colour := []string{colourOther, colourOther2}[j]
			if isOurs(s) {
				colour = []string{colourOurs, colourOurs2}[j]
			}
			long := 0.0
			if v > 0 {
				long = length(v)
			}
			p(`<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/><text x="%.1f" y="%d" font-size="10">%s</text>`,
				nameWidth, top+j*barHeight, long, barHeight-1, colour, nameWidth+long+4, top+(j+1)*barHeight-3, value(v, figureTexts[k.Figure]))
		}
	}
	p("</g>")
	return b.String()
}

func (r *report) heatHeight() int { return 56 + len(r.workloads())*20 }

// workloads are those measured.
func (r *report) workloads() []string {
	unmeasured := func(name string) bool { return r.rounds(cellKey{name, "full", "qps"}, ours) == nil }
	return slices.DeleteFunc(slices.Clone(workload.Names), unmeasured)
}

// heat draws a table of ratios: green where neardns is surely better, orange where it is surely worse.
func (r *report) heat(subject, title, measure, figure string, x, y int) string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p(`<g transform="translate(%d %d)">`, x, y)
	p(`<text x="0" y="14" font-weight="bold">%s to each server: %s (green: surely less; orange: surely more)</text>`, html.EscapeString(subject), html.EscapeString(title))
	servers := r.others()
	for i, s := range servers {
		p(`<text x="%d" y="34" text-anchor="middle" fill="#555">%s</text>`, 60+i*cellWidth+cellWidth/2, html.EscapeString(s))
	}
	for j, name := range r.workloads() {
		top := 40 + j*20
		p(`<text x="0" y="%d">%s</text>`, top+14, name)
		for i, s := range servers {
			e := r.ratio(cellKey{name, measure, figure}, subject, s)
			if e.N == 0 {
				continue
			}
			colour, ink := "#eeeeee", "black"
			if e.High < 1 {
				colour, ink = colourBetter, "white"
			} else if e.Low > 1 {
				colour, ink = colourWorse, "white"
			}
			p(`<rect x="%d" y="%d" width="%d" height="18" fill="%s"/><text x="%d" y="%d" text-anchor="middle" fill="%s">%.2f</text>`,
				60+i*cellWidth+1, top, cellWidth-2, colour, 60+i*cellWidth+cellWidth/2, top+13, ink, e.Median)
		}
	}
	p("</g>")
	return b.String()
}
