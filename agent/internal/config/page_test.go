package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

// The page's table is drawn from the table of fields and the comments of the full sample, so that no key is documented twice.
func TestPage(t *testing.T) {
	sample := testutil.ReadFile(t, "../../../conf/nodeconfig-full.yaml")
	golden.Part(t, "../../../docs/reference/configuration.md", "fields", fieldsTable(documented(sample)))
}

// fieldsTable has a row for each field, and one before a group that has a comment of its own.
func fieldsTable(comments map[string]string) string {
	var b strings.Builder
	b.WriteString("| key | default | reloads | meaning |\n| --- | --- | --- | --- |\n")
	plain, last := Default(), ""
	for _, f := range table() {
		group, _, _ := strings.Cut(f.name, ".")
		if group != last && group != f.name && comments[group] != "" {
			fmt.Fprintf(&b, "| **%s** | | | %s |\n", group, cell(comments[group]))
		}
		last = group
		comment := comments[f.name]
		value := "`" + flow(f.show(&plain)) + "`"
		switch {
		case strings.Contains(comment, "efault: "): // detected on the node, or described in words
			value = "see meaning"
		case f.show(&plain) == nil:
			value = "none"
		}
		reloads := "no"
		if f.reload {
			reloads = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, value, reloads, cell(comment))
	}
	return b.String()
}

// cell makes a comment fit for a table of Markdown.
func cell(comment string) string {
	comment = strings.NewReplacer(" Reloads.", "", "Reloads.", "", "|", `\|`).Replace(comment)
	if comment == "" || strings.HasSuffix(comment, ".") {
		return comment
	}
	return comment + "."
}
