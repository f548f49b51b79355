package commands

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/neardns/neardns/internal/cli"
)

// table returns rows in the layout of kubectl's tables. It replaces control characters, because the texts come from nodes.
func table(rows [][]any) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = strings.ReplaceAll(cli.Printable(fmt.Sprint(cell)), "\n", "?")
		}
		fmt.Fprintf(w, strings.Repeat("%s\t", len(row)-1)+"%s\n", row...)
	}
	_ = w.Flush() // into memory
	return b.String()
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
