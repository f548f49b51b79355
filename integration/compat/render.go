package compat

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Render draws a table in Markdown: "yes", or the tests' own words, where they passed, "no" with the reason below the table, "FAILS", "not
// run", and "–" for what cannot be tested.
func Render(t *Table, results []Result) string {
	rows := t.rows(results)
	var notes []string
	note := func(why string) string {
		i := slices.Index(notes, why)
		if i < 0 {
			i = len(notes)
			notes = append(notes, why)
		}
		return fmt.Sprintf(" (%d)", i+1)
	}
	cell := func(row []string, column string) string {
		i := slices.IndexFunc(results, func(r Result) bool { return r.Column == column && slices.Equal(r.Row, row) })
		why := t.never(row[0], column)
		switch {
		case why != "":
			return "–" + note(why)
		case i < 0:
			return "not run"
		case results[i].Result == Pass:
			return cmp.Or(results[i].Value, "yes")
		case results[i].Result == Limit:
			return "no" + note(results[i].Limit)
		}
		return "**FAILS**"
	}

	lines := make([][]string, 0, len(rows)+1)
	lines = append(lines, slices.Concat(t.Head, t.Columns))
	for _, row := range rows {
		line := slices.Clone(row)
		for _, c := range t.Columns {
			line = append(line, cell(row, c))
		}
		if t.Tests {
			line = append(line, shownBy(results, row))
		}
		lines = append(lines, line)
	}
	if t.Tests {
		lines[0] = append(lines[0], "shown by")
	}
	if t.Across {
		lines = t.across(lines)
	}
	var b strings.Builder
	for i, line := range lines {
		b.WriteString("| " + strings.Join(line, " | ") + " |\n")
		if i == 0 {
			b.WriteString(strings.Repeat("| --- ", len(line)) + "|\n")
		}
	}
	b.WriteString("\n" + ran(results) + "\n")
	for i, why := range notes {
		if i == 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "%d. %s\n", i+1, why)
	}
	return b.String()
}

// shownBy names the tests of a row.
func shownBy(results []Result, row []string) string {
	var names []string
	for _, r := range results {
		if !slices.Equal(r.Row, row) {
			continue
		}
		for _, test := range r.Tests {
			_, name, _ := strings.Cut(test, " ")
			name, _, _ = strings.Cut(name, "/")
			names = append(names, "`"+name+"`")
		}
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

// rows are those of the table, with what describes them where that is known, and then those that were only recorded.
func (t *Table) rows(results []Result) [][]string {
	var out [][]string
	for _, keys := range t.Rows {
		row := append(slices.Clone(keys), slices.Repeat([]string{""}, len(t.Head)-t.Keys)...)
		for _, r := range results {
			if t.key(r.Row) == t.key(row) {
				row = r.Row
				break
			}
		}
		out = append(out, row)
	}
	for _, r := range results {
		if !slices.ContainsFunc(out, func(o []string) bool { return t.key(o) == t.key(r.Row) }) {
			out = append(out, r.Row)
		}
	}
	return out
}

// across turns rows into columns; the head columns of a row become one title.
func (t *Table) across(lines [][]string) [][]string {
	var out [][]string
	title := make([]string, 0, len(lines))
	for i, line := range lines {
		name := strings.Join(slices.DeleteFunc(slices.Clone(line[:len(t.Head)]), func(s string) bool { return s == "" }), " ")
		if i == 0 {
			name = ""
		}
		title = append(title, name)
	}
	out = append(out, title)
	for i := len(t.Head); i < len(lines[0]); i++ {
		var turned []string
		for _, line := range lines {
			turned = append(turned, line[i])
		}
		out = append(out, turned)
	}
	return out
}

// ran returns when, at which commits and on which kernels the cells were tested.
func ran(results []Result) string {
	if len(results) == 0 {
		return "Nothing of it was run yet."
	}
	var days, commits, kernels []string
	for _, r := range results {
		days, commits, kernels = append(days, r.Day), append(commits, r.Commit), append(kernels, r.Kernel)
	}
	slices.Sort(days)
	slices.Sort(commits)
	slices.Sort(kernels)
	when := days[0]
	if last := days[len(days)-1]; last != when {
		when += " to " + last
	}
	list := func(of []string) string { return strings.Join(slices.Compact(of), ", ") }
	return fmt.Sprintf("Run %s at commit %s, on Linux %s.", when, list(commits), list(kernels))
}

// Marks enclose a table in a document.
func marks(name string) (begin, end string) {
	return "<!-- compat " + name + " -->\n", "<!-- end of compat " + name + " -->"
}

// Fill puts a table between its marks in a document; it returns an error where the document has no such place.
func Fill(document, name, table string) (string, error) {
	begin, end := marks(name)
	head, rest, ok := strings.Cut(document, begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", fmt.Errorf("the document has no place for table %s: put the lines %q and %q into it", name, strings.TrimSpace(begin), end)
	}
	return head + begin + table + end + tail, nil
}

// Draw puts a table between its marks in the document of that file.
func Draw(file, name, table string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	filled, err := Fill(string(text), name, table)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, []byte(filled), 0o644)
}
