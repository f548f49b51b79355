package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// row is one thing that was looked at.
type row struct {
	what, want, seen string
	ok               bool
}

// table is what the demo ends with, and what its exit status comes of.
type table struct{ rows []row }

func (t *table) add(r row) { t.rows = append(t.rows, r) }

// failed is how many rows are not as they should be.
func (t *table) failed() int {
	n := 0
	for _, r := range t.rows {
		if !r.ok {
			n++
		}
	}
	return n
}

// write prints the table with columns as wide as their contents.
func (t *table) write(w io.Writer, s style) {
	cells := [][]string{{"", "what", "as it should be", "as it was seen", ""}}
	for i, r := range t.rows {
		cells = append(cells, []string{fmt.Sprint(i + 1), r.what, r.want, r.seen, verdict(r.ok)})
	}
	width := make([]int, len(cells[0]))
	for _, line := range cells {
		for i, c := range line {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	for i, line := range cells {
		var b strings.Builder
		for j, c := range line {
			gap := strings.Repeat(" ", width[j]-utf8.RuneCountInString(c))
			if j == 0 {
				b.WriteString(gap + c) // numbers to the right
			} else {
				b.WriteString("  " + c + gap)
			}
		}
		text := strings.TrimRight(b.String(), " ")
		switch {
		case i == 0:
			text = s.bold(text)
		case !t.rows[i-1].ok:
			text = s.red(text)
		}
		fmt.Fprintln(w, text)
	}
}

func verdict(ok bool) string {
	if ok {
		return "ok"
	}
	return "NOT OK"
}

// Exit codes. Those for signals are the shell's.
const (
	exitGood   = 0
	exitFailed = 1
	exitUsage  = 2
	exitSignal = 128
)

// exitStatus is good only for a story that was told to its end with each row as it should be.
func exitStatus(t *table, err error) int {
	if err != nil || len(t.rows) == 0 || t.failed() > 0 {
		return exitFailed
	}
	return exitGood
}
