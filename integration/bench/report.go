package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/neardns/neardns/integration/bench/generator"
	"github.com/neardns/neardns/integration/bench/paired"
	"github.com/neardns/neardns/integration/bench/workload"
)

// row is one line of the report: a subject, what it is held against, and the ratio between them, all over rounds.
type row struct {
	Part    string          `json:"part"`
	Subject string          `json:"subject"`
	Than    string          `json:"than,omitempty"` // what it is compared with; empty: an absolute value
	Unit    string          `json:"unit"`
	Ours    paired.Estimate `json:"ours"`
	Theirs  paired.Estimate `json:"theirs,omitzero"`
	Ratio   paired.Estimate `json:"ratio,omitzero"`
	// Limit bounds the median ratio, or the value itself where there is nothing to compare with; 0: only reported.
	Limit float64 `json:"limit,omitempty"`
	// Rounds are the values behind it, so that anyone may sum them up in another way.
	OursRounds   []float64 `json:"oursRounds"`
	TheirsRounds []float64 `json:"theirsRounds,omitempty"`
}

// report is what a run found.
type report struct {
	Taken     time.Time   `json:"taken"`
	Machine   string      `json:"machine"`
	Short     bool        `json:"short"`
	Noise     noise       `json:"noise"`
	Servers   []version   `json:"servers"`
	Questions []questions `json:"questions"`
	Notes     []string    `json:"notes"`
	Rows      []row       `json:"rows"`  // of the plugin: each next to what does the same work
	Cells     []cell      `json:"cells"` // of the servers: each figure of each
	// Latencies are the whole distributions behind some of the cells.
	Latencies []latency `json:"latencies,omitempty"`

	heardOf map[latencyOf]*generator.Histogram // while it is measured
}

// version is what a server reports about itself.
type version struct {
	Server  string `json:"server"`
	Version string `json:"version"`
}

// questions are those of all measured runs of a server.
type questions struct {
	Server   string `json:"server"`
	Answered int    `json:"answered"`
	Lost     int    `json:"lost"` // or failed
	Wrong    int    `json:"wrong"`
}

// compare adds a row for two series of rounds.
func (r *report) compare(part, subject, than, unit string, ours, theirs []float64, limit float64) {
	r.Rows = append(r.Rows, row{
		Part: part, Subject: subject, Than: than, Unit: unit, Limit: limit,
		Ours: paired.Median(ours), Theirs: paired.Median(theirs), Ratio: paired.Ratios(ours, theirs),
		OursRounds: ours, TheirsRounds: theirs,
	})
}

// value adds a row for one series alone.
func (r *report) value(part, subject, unit string, rounds []float64, limit float64) {
	r.Rows = append(r.Rows, row{Part: part, Subject: subject, Unit: unit, Ours: paired.Median(rounds), Limit: limit, OursRounds: rounds})
}

// remark adds a sentence.
func (r *report) remark(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// subject is what a row's limit is about.
func (w row) judged() paired.Estimate {
	if w.Than == "" {
		return w.Ours
	}
	return w.Ratio
}

// verdict reports whether the limit holds. An interval that reaches beyond it is reported, since a second run might differ.
func (w row) verdict() string {
	e := w.judged()
	switch {
	case w.Limit == 0:
		return ""
	case math.IsNaN(e.Median) || e.N < paired.Least && w.Than != "":
		return "too few rounds"
	case e.High <= w.Limit:
		return "holds"
	case e.Median <= w.Limit:
		return "holds, not surely"
	case e.Low <= w.Limit:
		return "EXCEEDED, not surely"
	}
	return "EXCEEDED"
}

// exceeded lists the rows whose median is beyond the limit.
func (r *report) exceeded() []string {
	var out []string
	for _, w := range append(slices.Clone(r.Rows), r.limited()...) {
		if v := w.verdict(); v != "" && !strings.HasPrefix(v, "holds") {
			out = append(out, fmt.Sprintf("%s: %s: %s against at most %g (%s)", w.Part, w.Subject, w.judged(), w.Limit, v))
		}
	}
	return out
}

const limitPart = "Limits beside a stock CoreDNS with NodeLocal's Corefile"

// limited are the rows of what must hold whatever the committed result is.
func (r *report) limited() []row {
	var out []row
	for _, k := range []cellKey{{"W1", "full", "server"}, {workload.Miss, "full", "server"}} {
		a, b := r.rounds(k, ours), r.rounds(k, stock)
		if len(a) == 0 || len(b) == 0 {
			continue
		}
		out = append(out, row{
			Part: limitPart, Subject: k.Workload + ", " + measureText(k.Measure) + ": " + figureTexts[k.Figure].text, Than: stock, Unit: figureTexts[k.Figure].unit,
			Ours: paired.Median(a), Theirs: paired.Median(b), Ratio: paired.Ratios(a, b), Limit: 1,
		})
	}
	return out
}

func measureText(key string) string {
	for _, m := range measures {
		if m.key == key {
			return m.text
		}
	}
	return key
}

// markdown writes the tables for people: what matters first.
func (r *report) markdown(out io.Writer) {
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format+"\n", args...) }
	p("Taken %s on %s. %s\n", r.Taken.Format("2006-01-02"), r.Machine, &r.Noise)
	if r.Short {
		p("A short run: percentiles beyond the 99th are of few queries.\n")
	}
	p("Median [95 %% interval] of interleaved rounds. A ratio is the median of the rounds' own ratios.")
	if len(r.Cells) > 0 {
		for _, s := range r.subjects() {
			p("\n### %s's figures, to each server's\n\n%s", s, r.ratioTable(s))
		}
		for _, t := range r.tables() {
			p("\n### %s\n\n%s", t.title, t.text)
		}
	}
	part := ""
	for _, w := range append(slices.Clone(r.Rows), r.limited()...) {
		if w.Part != part {
			part = w.Part
			p("\n### %s\n\n| what | neardns | compared with | theirs | ratio | limit | |\n| --- | ---: | --- | ---: | ---: | ---: | --- |", part)
		}
		theirs, ratio, limit := "", "", ""
		if w.Than != "" {
			theirs, ratio = amount(w.Theirs.Median, w.Unit), w.Ratio.String()
		}
		if w.Limit != 0 {
			limit = fmt.Sprintf("%g", w.Limit)
			if w.Than == "" {
				limit = amount(w.Limit, w.Unit)
			}
		}
		ours := amount(w.Ours.Median, w.Unit)
		if w.Than == "" && len(w.OursRounds) > 1 {
			ours = w.Ours.String() + " " + w.Unit
		}
		p("| %s | %s | %s | %s | %s | %s | %s |", w.Subject, ours, w.Than, theirs, ratio, limit, w.verdict())
	}
	if len(r.Servers) > 0 {
		p("\n### Servers\n\n| server | version | answered | lost or failed | wrong |\n| --- | --- | ---: | ---: | ---: |")
		for _, v := range r.Servers {
			for _, q := range r.Questions {
				if q.Server == v.Server {
					p("| %s | %s | %d | %d | %d |", v.Server, v.Version, q.Answered, q.Lost, q.Wrong)
				}
			}
		}
	}
	for _, n := range r.Notes {
		p("\n%s", n)
	}
}
