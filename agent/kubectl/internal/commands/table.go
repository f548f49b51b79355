package commands

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/neardns/neardns/internal/cli"
)

// table is a text table in the layout of kubectl's tables.
type table struct {
	b     strings.Builder
	w     *tabwriter.Writer
	cells []string
}

func newTable(head ...any) *table {
	t := new(table)
	t.w = tabwriter.NewWriter(&t.b, 0, 0, 3, ' ', 0)
	t.add(head...)
	return t
}

// add adds cells to the current row. It replaces control characters, because the texts come from nodes.
func (t *table) add(cells ...any) {
	for _, c := range cells {
		t.cells = append(t.cells, strings.ReplaceAll(cli.Printable(fmt.Sprint(c)), "\n", "?"))
	}
}

// end adds the last cells of the row and starts the next row.
func (t *table) end(cells ...any) {
	t.add(cells...)
	fmt.Fprintln(t.w, strings.Join(t.cells, "\t"))
	t.cells = nil
}

func (t *table) text() string {
	_ = t.w.Flush() // into memory
	return t.b.String()
}

func percent(part, whole uint64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(whole))
}

func perSecond(n uint64, seconds float64) string {
	if seconds <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", float64(n)/seconds)
}
