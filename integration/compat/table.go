package compat

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed tables
var files embed.FS

// Table is the frame of a table. It is written by hand, as a file in the folder tables.
type Table struct {
	Name string `json:"-"`
	// Page is the document that has the table; by default the constant of that name.
	Page string `json:"page"`
	// Head are the titles of the columns that say what a row is about; the first Keys of them tell rows apart.
	Head []string `json:"head"`
	Keys int      `json:"keys"`
	// Rows are the keys of the rows that the table shows, run or not, in this order. Others follow as they were recorded.
	Rows [][]string `json:"rows"`
	// Columns are what is tested of each row.
	Columns []string `json:"columns"`
	// Across has the table drawn with the rows as columns, for one with many columns and few rows.
	Across bool `json:"across"`
	// Tests has the tests of each row named in one column more.
	Tests bool `json:"tests"`
	// Never are cells that cannot be tested.
	Never []Never `json:"never"`
}

// Never names cells that have no meaning, such as a verb that a runtime does not call: each row's first key with each column.
type Never struct {
	Rows    []string `json:"rows"`
	Columns []string `json:"columns"`
	Why     string   `json:"why"`
}

// Load reads a table by its name.
func Load(name string) (*Table, error) {
	text, err := files.ReadFile("tables/" + name + ".json")
	if err != nil {
		return nil, fmt.Errorf("there is no table %q: add integration/compat/tables/%s.json", name, name)
	}
	return parseTable(name, text)
}

// Names lists the tables.
func Names() ([]string, error) {
	found, err := fs.Glob(files, "tables/*.json")
	for i, f := range found {
		found[i] = strings.TrimSuffix(path.Base(f), ".json")
	}
	return found, err
}

func parseTable(name string, text []byte) (*Table, error) {
	t := &Table{Name: name}
	if err := decode(text, t); err != nil {
		return nil, fmt.Errorf("table %s: %w", name, err)
	}
	if t.Page == "" {
		t.Page = Page
	}
	if t.Keys < 1 || t.Keys > len(t.Head) || len(t.Columns) == 0 {
		return nil, fmt.Errorf("table %s: it needs a head, at least one column, and 1 to %d keys", name, len(t.Head))
	}
	for _, r := range t.Rows {
		if len(r) != t.Keys {
			return nil, fmt.Errorf("table %s: row %q has %d keys, want %d", name, r, len(r), t.Keys)
		}
	}
	for _, n := range t.Never {
		for _, c := range n.Columns {
			if !slices.Contains(t.Columns, c) {
				return nil, fmt.Errorf("table %s: it has no column %q", name, c)
			}
		}
	}
	return t, nil
}

// admits returns an error for a cell that the table has no place for.
func (t *Table) admits(c Cell) error {
	switch {
	case len(c.Row) != len(t.Head):
		return fmt.Errorf("table %s: row %q needs a value for each of %q", t.Name, c.Row, t.Head)
	case !slices.Contains(t.Columns, c.Column):
		return fmt.Errorf("table %s: it has no column %q, but %q", t.Name, c.Column, t.Columns)
	case t.never(c.Row[0], c.Column) != "":
		return fmt.Errorf("table %s: %q with %q is among those that cannot be asked", t.Name, c.Row[0], c.Column)
	}
	for _, s := range append(slices.Clone(c.Row), c.Limit, c.Value) {
		if strings.ContainsAny(s, "|\n") {
			return fmt.Errorf("table %s: %q cannot stand in a table of Markdown", t.Name, s)
		}
	}
	return nil
}

func (t *Table) never(row, column string) string {
	for _, n := range t.Never {
		if slices.Contains(n.Rows, row) && slices.Contains(n.Columns, column) {
			return n.Why
		}
	}
	return ""
}

// key identifies a row.
func (t *Table) key(row []string) string { return strings.Join(row[:t.Keys], "\x00") }

// Result is what the last run that tested it showed of one cell.
type Result struct {
	Row    []string `json:"row"`
	Column string   `json:"column"`
	Result string   `json:"result"` // pass, limit or fail
	Limit  string   `json:"limit,omitempty"`
	Value  string   `json:"value,omitempty"`
	Kernel string   `json:"kernel"`
	Commit string   `json:"commit"` // that the test ran at
	Day    string   `json:"day"`
	Tests  []string `json:"tests"` // folder and name of each
}

// The values of Result.Result.
const (
	Pass  = "pass"
	Limit = "limit"
	Fail  = "fail"
)

// ReadResults reads what is known of a table from a folder of results; there may be nothing yet.
func ReadResults(folder, name string) ([]Result, error) {
	text, err := os.ReadFile(filepath.Join(folder, name+".json"))
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	var out []Result
	if err := decode(text, &out); err != nil {
		return nil, fmt.Errorf("results of %s: %w", name, err)
	}
	return out, nil
}

// WriteResults is ReadResults' other half.
func WriteResults(folder, name string, results []Result) error {
	var b bytes.Buffer
	b.WriteString("[")
	for i, r := range results { // a line each, so that a difference reads well
		text, err := json.Marshal(r)
		if err != nil {
			return err
		}
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString("\n  ")
		b.Write(text)
	}
	b.WriteString("\n]\n")
	if err := os.WriteFile(filepath.Join(folder, name+".json"), b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}

func decode(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}
