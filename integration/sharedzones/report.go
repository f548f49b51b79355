package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// cell is what one row showed on one server.
type cell struct {
	Row     string             `json:"row"`
	Server  string             `json:"server"`
	Bar     string             `json:"bar"`
	Figures map[string]float64 `json:"figures"`
	Said    string             `json:"said"` // the figures in words
	Missed  []string           `json:"missed,omitempty"`
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
	Day   string `json:"day"`
	Short bool   `json:"short"`
	Cells []cell `json:"cells"`
}

// good reports whether every bar was met.
func (r result) good() bool {
	return !slices.ContainsFunc(r.Cells, func(c cell) bool { return len(c.Missed) > 0 })
}

// table prints the run as one table in Markdown, and below it what missed its bar.
func (r result) table(w io.Writer) {
	fmt.Fprintln(w, "| shown on | bar | server | figures | met | s |\n| --- | --- | --- | --- | --- | --- |")
	for _, c := range r.Cells {
		met := "yes"
		if len(c.Missed) > 0 {
			met = "NO"
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %.0f |\n", c.Row, c.Bar, c.Server, c.Said, met, c.Seconds)
	}
	for _, c := range r.Cells {
		for _, m := range c.Missed {
			fmt.Fprintf(w, "\n%s, %s: %s\n", c.Row, c.Server, strings.TrimSpace(m))
		}
	}
}

func (r result) write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
