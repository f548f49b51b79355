package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/neardns/neardns/integration/bench/workload"
)

// headline is a line of the first table.
type headline struct {
	text string
	key  cellKey
}

var headlines = []headline{
	{"W1, full speed: server's CPU per answer", cellKey{"W1", "full", "server"}},
	{"W1, full speed: whole node's CPU per answer", cellKey{"W1", "full", "node"}},
	{"W1, full speed on one core: answers a second", cellKey{"W1", "shared", "qps"}},
	{"W1, 1,000 a second: whole node's CPU per answer", cellKey{"W1", "1k", "node"}},
	{"W1, 10,000 a second: whole node's CPU per answer", cellKey{"W1", "10k", "node"}},
	{"W1, one in flight: p50", cellKey{"W1", "one", "p50"}},
	{"W1, one in flight: p99", cellKey{"W1", "one", "p99"}},
	{"W1, one in flight: p99.9", cellKey{"W1", "one", "p99.9"}},
	{"W1, 1,000 a second: p99", cellKey{"W1", "1k", "p99"}},
	{"W1, 1,000 a second: p99.9", cellKey{"W1", "1k", "p99.9"}},
	{"W1, 10,000 a second: p99", cellKey{"W1", "10k", "p99"}},
	{"W1, 10,000 a second: p99.9", cellKey{"W1", "10k", "p99.9"}},
	{"misses, full speed: server's CPU per answer", cellKey{workload.Miss, "full", "server"}},
	{"resident memory after the start", cellKey{memoryLoad, "start", "RSS"}},
	{"resident memory, 10,000 names", cellKey{memoryLoad, "full", "RSS"}},
}

// ratioTable holds one of neardns's ways against every other server; a bold ratio is one that is surely better than 1.
func (r *report) ratioTable(subject string) string {
	var b strings.Builder
	others := r.others()
	fmt.Fprintf(&b, "| | %s | to %s |\n| --- | ---: |%s\n", subject, strings.Join(others, " | to "), strings.Repeat(" ---: |", len(others)))
	for _, l := range headlines {
		if len(r.rounds(l.key, subject)) == 0 {
			continue
		}
		f := figureTexts[l.key.Figure]
		fmt.Fprintf(&b, "| %s | %s |", l.text, value(r.median(l.key, subject), f))
		for _, s := range others {
			e := r.ratio(l.key, subject, s)
			switch {
			case e.N == 0:
				b.WriteString(" |")
			case f.more && e.Low > 1 || !f.more && e.High < 1:
				fmt.Fprintf(&b, " **%s** |", e)
			default:
				fmt.Fprintf(&b, " %s |", e)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// table is one figure of all workloads and servers.
type table struct{ title, text string }

// tables are all figures, one a table: workloads down, servers across.
func (r *report) tables() []table {
	var out []table
	servers := r.servers()
	done := map[cellKey]bool{}
	for _, k := range r.keys() {
		of := cellKey{"", k.Measure, k.Figure}
		if k.Workload == memoryLoad || k.Workload == idleLoad || k.Workload == dnsperfLoad {
			of = k
		}
		if done[of] {
			continue
		}
		done[of] = true
		f := figureTexts[k.Figure]
		var b strings.Builder
		fmt.Fprintf(&b, "| | %s |\n| --- |%s\n", strings.Join(servers, " | "), strings.Repeat(" ---: |", len(servers)))
		for _, l := range r.keys() {
			if l != (cellKey{l.Workload, of.Measure, of.Figure}) || of.Workload != "" && l != of || of.Workload == "" && isOwn(l.Workload) {
				continue
			}
			fmt.Fprintf(&b, "| %s |", l.Workload)
			for _, s := range servers {
				fmt.Fprintf(&b, " %s |", value(r.median(l, s), f))
			}
			b.WriteByte('\n')
		}
		title := fmt.Sprintf("%s: %s (%s)", title(of), f.text, f.unit)
		out = append(out, table{title, b.String()})
	}
	return out
}

// isOwn reports what is no workload.
func isOwn(name string) bool { return name == memoryLoad || name == idleLoad || name == dnsperfLoad }

func title(k cellKey) string {
	switch {
	case k.Workload == memoryLoad && k.Measure == "start":
		return "Memory after the start"
	case k.Workload == memoryLoad:
		return fmt.Sprintf("Memory with %d names", memoryNames)
	case k.Workload == idleLoad:
		return "Idle"
	case k.Workload == dnsperfLoad:
		return "dnsperf, W1 at full speed"
	case k.Measure == "restart":
		return "1,000 a second while the server is started anew"
	}
	return strings.ToUpper(measureText(k.Measure)[:1]) + measureText(k.Measure)[1:]
}

// value prints a figure without its unit, times excepted, whose unit changes.
func value(v float64, f figure) string {
	switch {
	case math.IsNaN(v):
		return ""
	case f.unit == "µs" && v >= 1000:
		return micros(v)
	case f.unit == "/s":
		return thousands(v)
	case v == 0:
		return "0"
	case math.Abs(v) >= 100:
		return fmt.Sprintf("%.0f", v)
	case math.Abs(v) >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// thousands groups digits.
func thousands(v float64) string {
	text := fmt.Sprintf("%.0f", v)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// amount prints a value with its unit, with as many digits as it deserves.
func amount(v float64, unit string) string {
	switch {
	case math.Abs(v) >= 100:
		return fmt.Sprintf("%.0f %s", v, unit)
	case math.Abs(v) >= 10:
		return fmt.Sprintf("%.1f %s", v, unit)
	}
	return fmt.Sprintf("%.2f %s", v, unit)
}
