package compat

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Run is what the tests of one or more runs recorded.
type Run struct {
	Day string // of the results, as in 2026-01-31

	records []record
}

// Read adds the records in a text, which may be a log of other things too. Of one test about one cell the last counts.
func (r *Run) Read(from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		// A console ends its lines by a carriage return as well.
		text, ok := strings.CutPrefix(strings.TrimRight(lines.Text(), "\r"), mark)
		if !ok {
			continue
		}
		var one record
		if err := json.Unmarshal([]byte(text), &one); err != nil {
			return fmt.Errorf("record %q: %w", text, err)
		}
		r.records = slices.DeleteFunc(r.records, func(o record) bool {
			return o.Table == one.Table && o.Column == one.Column && slices.Equal(o.Row, one.Row) && o.Test == one.Test
		})
		r.records = append(r.records, one)
	}
	return lines.Err()
}

// Len is the number of records.
func (r *Run) Len() int { return len(r.records) }

// Results are the cells of one table that the run tested.
func (r *Run) Results(t *Table) ([]Result, error) {
	var out []Result
	for _, one := range r.records {
		if one.Table != t.Name {
			continue
		}
		if err := t.admits(one.Cell); err != nil {
			return nil, err
		}
		i := slices.IndexFunc(out, func(o Result) bool { return o.Column == one.Column && slices.Equal(o.Row, one.Row) })
		if i < 0 {
			i = len(out)
			out = append(out, Result{Row: one.Row, Column: one.Column, Result: Pass})
		}
		c := &out[i]
		c.Kernel, c.Commit, c.Day, c.Tests = one.Kernel, one.Commit, r.Day, append(c.Tests, one.Test)
		switch {
		case !one.Pass:
			c.Result, c.Limit = Fail, ""
		case one.Limit != "" && c.Result == Pass:
			c.Result, c.Limit = Limit, one.Limit
		}
		if one.Value != "" && !strings.Contains(c.Value, one.Value) {
			c.Value = strings.TrimPrefix(c.Value+"; "+one.Value, "; ")
		}
	}
	for i := range out {
		slices.Sort(out[i].Tests)
	}
	return out, nil
}

// Merge forms what is known of a table after a run: a cell that it tested replaces the one known, and a row whose description
// changed, such as its version, loses what was known of the old one.
func Merge(t *Table, known, ran []Result) []Result {
	describes := map[string][]string{}
	for _, r := range ran {
		describes[t.key(r.Row)] = r.Row
	}
	var out []Result
	for _, k := range known {
		if row, ok := describes[t.key(k.Row)]; ok && !slices.Equal(row, k.Row) {
			continue
		}
		if !slices.ContainsFunc(ran, func(r Result) bool { return r.Column == k.Column && slices.Equal(r.Row, k.Row) }) {
			out = append(out, k)
		}
	}
	for _, r := range ran {
		if slices.Equal(describes[t.key(r.Row)], r.Row) {
			out = append(out, r)
		}
	}
	slices.SortStableFunc(out, func(a, b Result) int {
		return cmp.Or(
			cmp.Compare(t.place(a.Row), t.place(b.Row)),
			slices.Compare(a.Row, b.Row),
			cmp.Compare(slices.Index(t.Columns, a.Column), slices.Index(t.Columns, b.Column)),
		)
	})
	return out
}

// place is a row's in the table; those that the table does not name come last.
func (t *Table) place(row []string) int {
	i := slices.IndexFunc(t.Rows, func(keys []string) bool { return slices.Equal(keys, row[:t.Keys]) })
	if i < 0 {
		return len(t.Rows)
	}
	return i
}

// Compare reports where the known cells differ from a run: a cell that the run showed to be otherwise, and one that none of the
// run's tests records any more, although their packages ran. Rows that the table neither names nor knows, such as another
// kernel's, are no difference.
func Compare(t *Table, known, ran []Result) []string {
	var out []string
	folders := map[string]bool{}
	for _, r := range ran {
		for _, test := range r.Tests {
			folders[folder(test)] = true
		}
	}
	same := func(a, b Result) bool { return a.Column == b.Column && t.key(a.Row) == t.key(b.Row) }
	for _, r := range ran {
		i := slices.IndexFunc(known, func(k Result) bool { return same(k, r) })
		switch {
		case i < 0 && t.place(r.Row) == len(t.Rows):
		case i < 0:
			out = append(out, fmt.Sprintf("table %s: %q, %s: the run showed %s, and the table does not have it yet", t.Name, r.Row, r.Column, r.Result))
		case known[i].Result != r.Result || known[i].Limit != r.Limit:
			out = append(out, fmt.Sprintf("table %s: %q, %s: the table says %s, the run showed %s", t.Name, r.Row, r.Column, said(known[i]), said(r)))
		}
	}
	for _, k := range known {
		// Rows of another kernel or version are not of this run.
		asked := slices.ContainsFunc(ran, func(r Result) bool { return t.key(r.Row) == t.key(k.Row) })
		ran := slices.ContainsFunc(ran, func(r Result) bool { return same(k, r) })
		if asked && !ran && slices.ContainsFunc(k.Tests, func(test string) bool { return folders[folder(test)] }) {
			out = append(out, fmt.Sprintf("table %s: %q, %s: the table says %s by %s, which the run did not record", t.Name, k.Row, k.Column, said(k), strings.Join(k.Tests, ", ")))
		}
	}
	return out
}

func folder(test string) string {
	f, _, _ := strings.Cut(test, " ")
	return f
}

func said(r Result) string {
	if r.Limit != "" {
		return r.Result + " (" + r.Limit + ")"
	}
	return r.Result
}
