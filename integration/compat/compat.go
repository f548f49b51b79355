// Package compat keeps the tables of docs/reference/compatibility.md and other pages to what tests have shown. A test records the cell that
// it stands for, with Record; the tool `make compat` takes the records of a run into the folder results and draws the tables from there; a
// test of the documents compares the pages with them. No cell is written by hand.
//
// What a table needs (its columns, the rows that it must have) stands in the folder tables. A cell whose test did not run since is
// "not run"; one where the product does not work is recorded by a test that shows just that, with the reason.
//
// Record writes only to what the variable NEARDNS_COMPAT names, a folder or stderr; without it a record is only checked.
package compat

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Page is the document that has the tables which name no other, in the repository's folder.
const Page = "docs/reference/compatibility.md"

// Env names the folder that records go to. "stderr" has them printed there, for tests that have no folder to write into, such
// as those in a virtual machine: the tool reads them from what it printed.
const Env = "NEARDNS_COMPAT"

// EnvCommit names the commit that the tests run at, as `git describe --always --dirty` does.
const EnvCommit = "NEARDNS_COMMIT"

// Cell is one cell of a table.
type Cell struct {
	Table string `json:"table"` // a file in the folder tables, without its ending
	// Row has a value for each of the table's head columns. The first ones, as many as the table has keys, tell rows apart; the
	// others, such as an exact version, only describe them.
	Row    []string `json:"row"`
	Column string   `json:"column"`
	// Limit is for a test that shows what does not work and what happens then: the reason, as a user reads it. Empty otherwise.
	Limit string `json:"limit,omitempty"`
	// Value is what a cell that passes has in place of "yes": what the test showed, with its figures.
	Value string `json:"value,omitempty"`
}

// record is the result of one test for one cell.
type record struct {
	Cell
	Pass   bool   `json:"pass"`
	Test   string `json:"test"` // folder of the package in this repository, and the test's name
	Kernel string `json:"kernel"`
	Commit string `json:"commit"`
}

// Record notes for a cell whether the test passes, when it ends. A cell that several tests record is as good as the worst of
// them. A test that is skipped records nothing. A cell that the table does not have ends the test.
func Record(t testing.TB, c Cell) {
	t.Helper()
	table, err := Load(c.Table)
	if err == nil {
		err = table.admits(c)
	}
	if err != nil {
		t.Fatalf("record a cell of a compatibility table: %v", err)
	}
	to := os.Getenv(Env)
	if to == "" {
		return
	}
	r := record{Cell: c, Test: caller() + " " + t.Name(), Kernel: Kernel(), Commit: cmp.Or(os.Getenv(EnvCommit), "unknown")}
	t.Cleanup(func() {
		if t.Skipped() {
			return
		}
		r.Pass = !t.Failed()
		if err := r.write(to); err != nil {
			t.Errorf("record a cell of a compatibility table: %v", err)
		}
	})
}

// Say notes what a test showed in a table of one column: value, of the row that begins with what.
func Say(t testing.TB, table, what, value string) {
	t.Helper()
	loaded, err := Load(table)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range loaded.Rows {
		if row[0] == what {
			Record(t, Cell{Table: table, Row: row, Column: loaded.Columns[0], Value: value})
			return
		}
	}
	t.Fatalf("table %s has no row %q", table, what)
}

// mark begins a record's line, so that it is found in a log of other things too.
const mark = "compat: "

// write appends one line by one write: tests of several packages run at the same time.
func (r record) write(to string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	line := mark + string(text) + "\n"
	if to == "stderr" {
		_, err := os.Stderr.WriteString("\n" + line)
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(to, "records"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(line); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

const module = "github.com/neardns/neardns/"

// caller is the folder of the package whose test called Record.
func caller() string {
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		// A function's name is its package's path, a dot, and the rest, in which slashes may stand only behind a type parameter.
		folder, ok := strings.CutPrefix(f.Function, module)
		if slash := max(strings.LastIndex(folder, "/"), 0); ok {
			if dot := strings.Index(folder[slash:], "."); dot > 0 {
				folder = folder[:slash+dot]
			}
			if folder = strings.TrimSuffix(folder, "_test"); folder != "integration/compat" || strings.HasSuffix(f.File, "_test.go") {
				return folder
			}
		}
		if !more {
			return "?"
		}
	}
}

// Kernel is the release that runs here, as far as it matters: 6.18.
func Kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "?"
	}
	parts := strings.SplitN(unix.ByteSliceToString(u.Release[:]), ".", 3)
	if len(parts) < 2 {
		return "?"
	}
	minor, _, _ := strings.Cut(parts[1], "-")
	return fmt.Sprintf("%s.%s", parts[0], minor)
}
