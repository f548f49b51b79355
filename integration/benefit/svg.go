package main

import (
	"fmt"
	"html"
	"strconv"
	"strings"
	"time"
)

// The picture's measures, in its own units.
const (
	panelHeight = 250
	svgWidth    = 760
	plotLeft    = 150
	plotWidth   = 470
	barHeight   = 11
)

// Colours that are distinguished without colour vision too (Okabe and Ito).
const (
	colourWithout = "#d55e00"
	colourWith    = "#0072b2"
)

// svg draws what plot prints.
func (r report) svg() string {
	var b strings.Builder
	height := 60 + panelHeight*len(r.Cases) + 20
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="12">`, svgWidth, height)
	p(`<rect width="100%%" height="100%%" fill="white"/>`)
	p(`<text x="10" y="22" font-size="15">How long lookups take a pod, without neardns and with it</text>`)
	p(`<rect x="10" y="34" width="11" height="11" fill="%s"/><text x="26" y="44">without</text>`, colourWithout)
	p(`<rect x="90" y="34" width="11" height="11" fill="%s"/><text x="106" y="44">with neardns</text>`, colourWith)
	p(`<text x="200" y="44" fill="#555">%d lookups a second, kube-dns %v away; a missed lookup counts as %v</text>`, r.Rate, r.Away, retryAfter)
	for i, c := range r.Cases {
		b.WriteString(c.panel(60 + panelHeight*i))
	}
	p("</svg>")
	return b.String()
}

// panel draws one case from y on.
func (c result) panel(y int) string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p(`<g transform="translate(0 %d)">`, y)
	p(`<text x="10" y="16" font-weight="bold">%s</text>`, html.EscapeString(c.Title))
	below := 30 + len(points())*(2*barHeight+5)
	for decade := range decades + 1 {
		x := plotLeft + plotWidth*decade/decades
		d := axisFrom
		for range decade {
			d *= 10
		}
		p(`<line x1="%d" y1="26" x2="%[1]d" y2="%d" stroke="#ddd"/>`, x, below)
		p(`<text x="%d" y="%d" text-anchor="middle" fill="#555">%s</text>`, x, below+13, axisName(d))
	}
	for k, share := range points() {
		top := 30 + k*(2*barHeight+5)
		p(`<text x="%d" y="%d" text-anchor="end">%s</text>`, plotLeft-8, top+barHeight+4, pointName(share))
		for j, s := range []summed{c.Without, c.With} {
			colour := []string{colourWithout, colourWith}[j]
			length := max(1, int(along(s.Times[k])*plotWidth))
			p(`<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/><text x="%d" y="%d" font-size="10">%s</text>`,
				plotLeft, top+j*barHeight, length, barHeight-1, colour, plotLeft+length+4, top+(j+1)*barHeight-2, duration(s.Times[k]))
		}
	}
	both := func(without, with string) string {
		return fmt.Sprintf(`<tspan fill="%s">%s</tspan> / <tspan fill="%s">%s</tspan>`, colourWithout, without, colourWith, with)
	}
	p(`<text x="%d" y="%d">conntrack entries at the end: %s; lookups missed: %s</text>`, plotLeft, below+32,
		both(strconv.Itoa(c.Without.Entries), strconv.Itoa(c.With.Entries)),
		both(share(c.Without.Missed, c.Without.Lookups), share(c.With.Missed, c.With.Lookups)))
	p("</g>")
	return b.String()
}

// axisName is a power of ten of a time, as people write it.
func axisName(d time.Duration) string {
	switch {
	case d >= time.Second:
		return strconv.Itoa(int(d/time.Second)) + " s"
	case d >= time.Millisecond:
		return strconv.Itoa(int(d/time.Millisecond)) + " ms"
	}
	return strconv.Itoa(int(d/time.Microsecond)) + " µs"
}
