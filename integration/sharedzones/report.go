package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/neardns/neardns/integration/compat"
	"github.com/neardns/neardns/pkg/strict"
)

// cell is what one row showed on one server.
type cell struct {
	Row     string             `json:"row"`
	Title   string             `json:"title"`
	Server  string             `json:"server"`
	Bar     string             `json:"bar"`
	Figures map[string]float64 `json:"figures"`
	Text    string             `json:"text"` // the figures in words
	Missed  []string           `json:"missed,omitempty"`
	Slow    []string           `json:"missedByTheServer,omitempty"` // bars in seconds that the server would miss without the product
	Seconds float64            `json:"seconds"`
}

// miss notes that a bar was missed, and by what.
func (c *cell) miss(format string, args ...any) {
	c.Missed = append(c.Missed, fmt.Sprintf(format, args...))
}

// within holds a duration to its bar, where durations count.
func (sz size) within(c *cell, bar time.Duration, what string, took time.Duration) {
	if sz.timed && took > bar {
		c.miss("%s after %s, more than %s", what, seconds(took), seconds(bar))
	}
}

// withinServers is within for a row that is next to a control: bare updates of the same records took the server bare. A bar that is missed
// counts only if the row also took more than perChange times that; else it is noted as the server's.
func (sz size) withinServers(c *cell, bar time.Duration, what string, took, bare time.Duration) {
	if took > perChange*bare {
		sz.within(c, bar, what, took)
	} else if sz.timed && took > bar {
		c.Slow = append(c.Slow, fmt.Sprintf("%s after %s, more than %s; bare updates of the same records take the server %s",
			what, seconds(took), seconds(bar), seconds(bare)))
	}
}

// figure notes a number for the JSON.
func (c *cell) figure(name string, value float64) {
	if c.Figures == nil {
		c.Figures = map[string]float64{}
	}
	c.Figures[name] = value
}

// wrong notes records that are missing or should not be there; the first few are named.
func (c *cell) wrong(when string, lost, left []string) {
	c.figure("lost", c.Figures["lost"]+float64(len(lost)))
	c.figure("left over", c.Figures["left over"]+float64(len(left)))
	if len(lost)+len(left) > 0 {
		c.miss("%s: lost %d %s, left over %d %s", when, len(lost), few(lost), len(left), few(left))
	}
}

func few(items []string) string { return fmt.Sprint(items[:min(3, len(items))]) }

// result is the whole run.
type result struct {
	Day    string `json:"day"`
	Commit string `json:"commit"`
	Short  bool   `json:"short"`
	Cells  []cell `json:"cells"` // row by row
}

// good reports whether every bar was met, but for those that the server misses without the product.
func (r result) good() bool {
	return !slices.ContainsFunc(r.Cells, func(c cell) bool { return len(c.Missed) > 0 })
}

// table prints the run as one table in Markdown, with a column for each server, and below it what missed its bar.
func (r result) table(w io.Writer) {
	var servers []string
	for _, c := range r.Cells {
		if !slices.Contains(servers, c.Server) {
			servers = append(servers, c.Server)
		}
	}
	fmt.Fprintf(w, "| what happens (`ONLY=`) | bar | %s |\n", strings.Join(servers, " | "))
	fmt.Fprint(w, strings.Repeat("| --- ", 2+len(servers))+"|")
	for i, c := range r.Cells {
		if i == 0 || r.Cells[i-1].Row != c.Row {
			fmt.Fprintf(w, "\n| %s (%s) | %s |", c.Title, c.Row, c.Bar)
		}
		switch {
		case len(c.Missed) > 0:
			fmt.Fprint(w, " **MISSED**:")
		case len(c.Slow) > 0:
			fmt.Fprint(w, " **MISSED BY THE SERVER**:")
		}
		fmt.Fprintf(w, " %s |", c.Text)
	}
	fmt.Fprintln(w)
	for _, c := range r.Cells {
		for _, m := range slices.Concat(c.Missed, c.Slow) {
			fmt.Fprintf(w, "\n%s, %s: %s\n", c.Row, c.Server, strict.ClipTo(strings.Join(strings.Fields(m), " "), 300))
		}
	}
}

// A whole run writes its result, and the page with its table; both from the repository's folder.
const (
	resultFile = "integration/sharedzones/result.json"
	resultPage = "fleet/docs/shared-zones-measured.md"
)

// drawn is the text of the page that a run draws.
func (r result) drawn() string {
	var b strings.Builder
	r.table(&b)
	fmt.Fprintf(&b, "\nRun %s at commit %s.\n", r.Day, r.Commit)
	return b.String()
}

// keep writes the result, and draws its page.
func (r result) keep() error {
	return errors.Join(r.save(resultFile), compat.Draw(resultPage, "zones", r.drawn()))
}

func (r result) save(name string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o644)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
