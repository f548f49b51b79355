package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// row is one fault with its rounds.
type row struct {
	Fault string    `json:"fault"`
	Title string    `json:"title"`
	Limit string    `json:"limit"`
	Ours  []outcome `json:"ours"`
	// Others are the rounds of the others, by their names.
	Others map[string][]outcome `json:"others,omitempty"`
	// Not is why there are no rounds of one, or of ours; "": there are.
	Not map[string]string `json:"not,omitempty"`
	// Beyond is what is beyond the limit in the median, Sometimes what was so in the worst round alone.
	Beyond    []string `json:"beyond,omitempty"`
	Sometimes []string `json:"sometimes,omitempty"`

	limit    limit
	promised bool
}

// report is what a run found.
type report struct {
	Taken   time.Time `json:"taken"`
	Machine string    `json:"machine"`
	Command string    `json:"command"`
	Rounds  int       `json:"rounds"`
	Rows    []*row    `json:"rows"`
}

// judge fills in what is beyond the limits.
func (r *report) judge() {
	for _, w := range r.Rows {
		w.Beyond, w.Sometimes = w.limit.verdict(w.Ours)
	}
}

// exceeded lists what is beyond its limit, in words: of all faults, or of those whose limit is promised.
func (r *report) exceeded(all bool) []string {
	var out []string
	for _, w := range r.Rows {
		if !all && !w.promised {
			continue
		}
		for _, b := range w.Beyond {
			out = append(out, w.Fault+": "+b)
		}
	}
	return out
}

// markdown writes the table for people.
func (r *report) markdown(out io.Writer) {
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format, args...) }
	p("Taken %s on %s, by `%s`.\n", r.Taken.Format("2006-01-02"), r.Machine, r.Command)
	p("Lost: queries without a right answer; of ours median / worst of %d rounds, of the others the medians of UDP / TCP (unbound and bare: "+
		"at most %d rounds). Gap: the longest between two right answers, of all rounds. Bare is a node without a cache.\n\n%s\n",
		r.Rounds, fewRounds, r.table())
	var notes strings.Builder
	for _, w := range r.Rows {
		for _, s := range append(append([]string(nil), w.Beyond...), w.Sometimes...) {
			fmt.Fprintf(&notes, "- %s: %s\n", w.Fault, s)
		}
		if late := worst(w.Ours, func(o outcome) float64 { return float64(o.Late) }); late > float64(100*time.Millisecond) {
			fmt.Fprintf(&notes, "- %s: the load generator itself was up to %s late: the machine is busy\n", w.Fault, short(time.Duration(late)))
		}
		if waited := worst(w.Ours, func(o outcome) float64 { return float64(o.Waited) }); waited > float64(busy) {
			fmt.Fprintf(&notes, "- %s: a thread of the server waited up to %s for a CPU within a second: the machine is busy\n", w.Fault, short(time.Duration(waited)))
		}
		for _, name := range append([]string{"ours"}, others()...) {
			if why := w.Not[name]; why != "" && why != noCache {
				fmt.Fprintf(&notes, "- %s, %s: %s\n", w.Fault, name, why)
			}
		}
	}
	p("%s", notes.String())
}

// table draws the rows in Markdown.
func (r *report) table() string {
	var b strings.Builder
	b.WriteString(tableHead)
	for _, w := range r.Rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |", w.Title, w.Limit, w.asked(), w.ours())
		for _, name := range others() {
			fmt.Fprintf(&b, " %s |", w.other(name))
		}
		fmt.Fprintf(&b, " %s |\n", w.holds())
	}
	return b.String()
}

// asked is the number of queries that a round sent.
func (w *row) asked() string {
	for _, o := range append(append([]outcome(nil), w.Ours...), w.Others[stock]...) {
		return fmt.Sprintf("%d + %d", o.UDP.Sent, o.TCP.Sent+o.TCPLong.Sent)
	}
	return ""
}

// The document with the table, from the repository's folder, and the target that draws it: the one of .ci/lanes.txt.
const (
	page    = "docs/project/faults.md"
	drawnBy = "make faults ROUNDS=3"
)

// tableHead is the table's first lines.
const tableHead = "| fault | at most | sent, UDP + TCP | ours: lost, UDP | TCP | gap, and more " +
	"| stock: lost, UDP / TCP, gap | unbound | bare | |\n" +
	"| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n"

// ours are the three columns of ours.
func (w *row) ours() string {
	if len(w.Ours) == 0 {
		return w.none("ours") + " | | "
	}
	lost := func(missed func(outcome) float64) string {
		return fmt.Sprintf("%.0f / %.0f", median(each(w.Ours, missed)), worst(w.Ours, missed))
	}
	return lost(udpMissed) + " | " + lost(tcpMissed) + " | " + more(w.Ours)
}

// other is the column of one of the others.
func (w *row) other(name string) string {
	rounds := w.Others[name]
	if len(rounds) == 0 {
		return w.none(name)
	}
	return fmt.Sprintf("%.0f / %.0f, %s", median(each(rounds, udpMissed)), median(each(rounds, tcpMissed)), more(rounds))
}

// none is the cell of a subject without rounds.
func (w *row) none(name string) string {
	if w.Not[name] == "" {
		return "-"
	}
	return "n/a"
}

func udpMissed(o outcome) float64 { return float64(o.UDP.Missed()) }
func tcpMissed(o outcome) float64 { return float64(o.tcpMissed()) }

// more is the gap, and what else a fault is about.
func more(rounds []outcome) string {
	middle := func(f func(outcome) float64) float64 { return median(each(rounds, f)) }
	more := []string{short(time.Duration(worst(rounds, func(o outcome) float64 { return float64(o.UDP.Gap) })))}
	if rounds[0].Kept >= 0 {
		more = append(more, "cache kept "+percent(middle(func(o outcome) float64 { return o.Kept })))
	}
	if rounds[0].InKernel > 0 {
		more = append(more, "in the kernel "+percent(middle(func(o outcome) float64 { return float64(o.InKernel) / float64(o.UDP.Sent) })))
	}
	if rounds[0].Slower > 0 {
		slower := middle(func(o outcome) float64 { return o.Slower })
		text := fmt.Sprintf("p99 × %.2g", slower)
		if slower >= 10 {
			text = fmt.Sprintf("p99 × %.0f", slower)
		}
		more = append(more, text)
	}
	if rounds[0].Grown > 0 {
		more = append(more, fmt.Sprintf("memory × %.2f", middle(func(o outcome) float64 { return o.Grown })))
	}
	if rounds[0].Refusal > 0 {
		more = append(more, "SERVFAIL in "+short(time.Duration(middle(func(o outcome) float64 { return float64(o.Refusal) }))))
	}
	return strings.Join(more, ", ")
}

func (w *row) holds() string {
	switch {
	case len(w.Ours) == 0:
		return ""
	case len(w.Beyond) > 0:
		return "EXCEEDED"
	case len(w.Sometimes) > 0:
		return "holds, not always"
	}
	return "holds"
}

// save writes the table and the rounds.
func (r *report) save(path string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("encode the report: %w", err)
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
