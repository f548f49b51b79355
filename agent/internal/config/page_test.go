package config

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The page's table is drawn from the table of fields and the comments of the full sample, so that no key is told twice.
func TestPage(t *testing.T) {
	const page, begin, end = "../../../docs/configuration.md", "<!-- fields -->\n", "<!-- end of fields -->"
	text := read(t, page)
	head, rest, ok := strings.Cut(text, begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table: put the lines %q and %q into it", page, strings.TrimSpace(begin), end)
	}
	want := head + begin + fieldsTable(documented(read(t, "../../../conf/nodeconfig-full.yaml"))) + end + tail
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, text); diff != "" {
		t.Errorf("%s is not what the fields and the full sample draw: run this test with -update (-want +got):\n%s", page, diff)
	}
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
		case strings.Contains(comment, "efault: "): // found on the node, or told in words
			value = "see there"
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
