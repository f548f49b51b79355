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
	Stock []outcome `json:"stock,omitempty"`
	// NoOurs and NoStock say why there are no rounds.
	NoOurs  string `json:"noOurs,omitempty"`
	NoStock string `json:"noStock,omitempty"`
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
	p("Lost: questions without a right answer, median / worst of %d rounds; gap: the longest between two right answers, of all rounds.\n\n", r.Rounds)
	p("| fault | at most | asked, UDP + TCP | ours: lost, UDP | TCP | gap, and more | stock: lost, UDP | TCP | gap, and more | |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n")
	for _, w := range r.Rows {
		p("| %s | %s | %s | %s | %s | %s |\n", w.Title, w.Limit, w.asked(), cells(w.Ours, w.NoOurs), cells(w.Stock, w.NoStock), w.holds())
	}
	p("\n")
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
		if w.NoStock != "" {
			fmt.Fprintf(&notes, "- %s, stock: %s\n", w.Fault, w.NoStock)
		}
		if w.NoOurs != "" {
			fmt.Fprintf(&notes, "- %s, ours: %s\n", w.Fault, w.NoOurs)
		}
	}
	p("%s", notes.String())
}

// asked is the number of queries that a round sent.
func (w *row) asked() string {
	for _, o := range append(append([]outcome(nil), w.Ours...), w.Stock...) {
		return fmt.Sprintf("%d + %d", o.UDP.Sent, o.TCP.Sent+o.TCPLong.Sent)
	}
	return ""
}

// cells are the three columns of one stand.
func cells(rounds []outcome, none string) string {
	if len(rounds) == 0 {
		if none == "" {
			return "- | | "
		}
		return "n/a | | "
	}
	middle := func(f func(outcome) float64) float64 { return median(each(rounds, f)) }
	more := []string{short(time.Duration(worst(rounds, func(o outcome) float64 { return float64(o.UDP.Gap) })))}
	if rounds[0].Kept >= 0 {
		more = append(more, "cache kept "+percent(middle(func(o outcome) float64 { return o.Kept })))
	}
	if rounds[0].InKernel > 0 {
		more = append(more, "in the kernel "+percent(middle(func(o outcome) float64 { return float64(o.InKernel) / float64(o.UDP.Sent) })))
	}
	if rounds[0].Slower > 0 {
		more = append(more, fmt.Sprintf("p99 × %.2g", middle(func(o outcome) float64 { return o.Slower })))
	}
	if rounds[0].Grown > 0 {
		more = append(more, fmt.Sprintf("memory × %.2f", middle(func(o outcome) float64 { return o.Grown })))
	}
	if rounds[0].Refusal > 0 {
		more = append(more, "SERVFAIL in "+short(time.Duration(middle(func(o outcome) float64 { return float64(o.Refusal) }))))
	}
	lost := func(missed func(outcome) float64) string {
		return fmt.Sprintf("%.0f / %.0f", middle(missed), worst(rounds, missed))
	}
	return strings.Join([]string{
		lost(func(o outcome) float64 { return float64(o.UDP.Missed()) }), lost(func(o outcome) float64 { return float64(o.tcpMissed()) }), strings.Join(more, ", "),
	}, " | ")
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
