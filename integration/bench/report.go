package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/neardns/neardns/integration/bench/paired"
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
	// Limit bounds the median ratio, or the value itself where there is nothing to compare with; 0: only told.
	Limit float64 `json:"limit,omitempty"`
	// Rounds are the values behind it, so that anyone may sum them up in another way.
	OursRounds   []float64 `json:"oursRounds"`
	TheirsRounds []float64 `json:"theirsRounds,omitempty"`
}

// report is what a run found.
type report struct {
	Taken   time.Time `json:"taken"`
	Machine string    `json:"machine"`
	Short   bool      `json:"short"`
	Notes   []string  `json:"notes"`
	Rows    []row     `json:"rows"`
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

func (r *report) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// subject is what a row's limit is about.
func (w row) judged() paired.Estimate {
	if w.Than == "" {
		return w.Ours
	}
	return w.Ratio
}

// verdict says whether the limit holds. An interval that reaches beyond it is told, since a second run might say otherwise.
func (w row) verdict() string {
	e := w.judged()
	switch {
	case w.Limit == 0:
		return ""
	case math.IsNaN(e.Median) || e.N < paired.Rounds && w.Than != "":
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
	for _, w := range r.Rows {
		if v := w.verdict(); v != "" && !strings.HasPrefix(v, "holds") {
			out = append(out, fmt.Sprintf("%s: %s: %s against at most %g (%s)", w.Part, w.Subject, w.judged(), w.Limit, v))
		}
	}
	return out
}

// markdown writes the table for people.
func (r *report) markdown(out io.Writer) {
	_, _ = fmt.Fprintf(out, "Taken %s on %s.\nMedian [95 %% interval] of %d or more interleaved rounds; the ratio is the median of the rounds' own ratios.\n",
		r.Taken.Format("2006-01-02"), r.Machine, paired.Rounds)
	part := ""
	for _, w := range r.Rows {
		if w.Part != part {
			part = w.Part
			_, _ = fmt.Fprintf(out, "\n### %s\n\n| what | neardns | compared with | theirs | ratio | limit | |\n| --- | ---: | --- | ---: | ---: | ---: | --- |\n", part)
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
		_, _ = fmt.Fprintf(out, "| %s | %s | %s | %s | %s | %s | %s |\n", w.Subject, ours, w.Than, theirs, ratio, limit, w.verdict())
	}
	for _, n := range r.Notes {
		_, _ = fmt.Fprintf(out, "\n%s\n", n)
	}
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

// save writes the table and the rounds into a folder.
func (r *report) save(dir string) error {
	var md strings.Builder
	r.markdown(&md)
	if err := os.WriteFile(filepath.Join(dir, "bench.md"), []byte(md.String()), 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("encode the report: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bench.json"), append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
