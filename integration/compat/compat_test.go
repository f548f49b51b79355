package compat

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

const testTable = `{"head": ["runtime", "version"], "keys": 1, "rows": [["a"], ["b"]], "columns": ["ADD", "GC"], "never": [{"rows": ["b"], "columns": ["GC"], "why": "b never calls it"}]}`

func table(t *testing.T) *Table {
	t.Helper()
	out, err := parseTable("test", []byte(testTable))
	testutil.Must(t, err)
	return out
}

func TestEveryTableLoads(t *testing.T) {
	names, err := Names()
	if err != nil || !slices.Contains(names, "runtimes") {
		t.Fatalf("tables %q: %v", names, err)
	}
	for _, name := range names {
		if _, err := Load(name); err != nil {
			t.Error(err)
		}
	}
	if _, err := Load("none"); err == nil || !strings.Contains(err.Error(), "tables/none.json") {
		t.Errorf("a table that is not there: %v", err)
	}
}

func TestBadTablesAndCells(t *testing.T) {
	for text, part := range map[string]string{
		`{"head": ["a"], "keys": 2, "columns": ["c"]}`:                                "1 to 1 keys",
		`{"head": ["a"], "keys": 1}`:                                                  "at least one column",
		`{"head": ["a"], "keys": 1, "columns": ["c"], "rows": [["x", "y"]]}`:          `"y"] has 2 keys`,
		`{"head": ["a"], "keys": 1, "columns": ["c"], "never": [{"columns": ["d"]}]}`: `no column "d"`,
		`{"head": ["a"], "keys": 1, "columns": ["c"], "rules": []}`:                   "rules",
		strings.Replace(testTable, `"keys": 1`, `"keys": "1"`, 1):                     "keys",
	} {
		if _, err := parseTable("x", []byte(text)); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, want %q", text, err, part)
		}
	}
	for part, c := range map[string]Cell{
		"needs a value for each": {Row: []string{"a"}, Column: "ADD"},
		`no column "DEL"`:        {Row: []string{"a", "1"}, Column: "DEL"},
		"cannot be asked":        {Row: []string{"b", "1"}, Column: "GC"},
		"Markdown":               {Row: []string{"a", "1"}, Column: "GC", Limit: "this | that"},
	} {
		if err := table(t).admits(c); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%+v: %v, want %q", c, err, part)
		}
	}
}

// Records go to the folder that the environment names, whole lines, with the outcome that the test has at its end.
func TestRecord(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	t.Setenv(Env, dir)
	t.Setenv(EnvCommit, "0123abcd")
	row := []string{"containerd", "2.4.1"}
	t.Run("good", func(t *testing.T) { Record(t, Cell{Table: "runtimes", Row: row, Column: "many pods at once"}) })
	t.Run("shows a limit", func(t *testing.T) {
		Record(t, Cell{Table: "runtimes", Row: row, Column: "STATUS", Limit: "not here"})
	})
	text, err := os.ReadFile(filepath.Join(dir, "records"))
	testutil.Must(t, err)
	shape := regexp.MustCompile(`^compat: \{"table":"runtimes","row":\["containerd","2.4.1"\],"column":"many pods at once","pass":true,"test":"integration/compat TestRecord/good","kernel":"\d+\.\d+","commit":"0123abcd"\}
compat: \{.*"column":"STATUS","limit":"not here","pass":true,"test":"integration/compat TestRecord/shows_a_limit".*\}
$`)
	if !shape.Match(text) {
		t.Errorf("records:\n%s", text)
	}
	var r Run
	if err := r.Read(strings.NewReader(string(text))); err != nil || r.Len() != 2 {
		t.Errorf("%d records read: %v", r.Len(), err)
	}
}

// ended is a test at its end.
type ended struct {
	testing.TB
	failed, skipped bool
}

func (e ended) Failed() bool     { return e.failed }
func (e ended) Skipped() bool    { return e.skipped }
func (e ended) Cleanup(f func()) { f() }

func TestRecordOfAFailedAndASkippedTest(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(Env, dir)
	cell := Cell{Table: "runtimes", Row: []string{"containerd", "2.4.1"}, Column: "STATUS"}
	Record(ended{t, false, true}, cell)
	if _, err := os.Stat(filepath.Join(dir, "records")); !os.IsNotExist(err) {
		t.Errorf("a skipped test recorded something: %v", err)
	}
	Record(ended{t, true, false}, cell)
	if text, err := os.ReadFile(filepath.Join(dir, "records")); err != nil || !strings.Contains(string(text), `"pass":false`) {
		t.Errorf("%v: %s", err, text)
	}
}

func read(t *testing.T, text string) *Run {
	t.Helper()
	r := &Run{Day: "2026-01-02"}
	testutil.Must(t, r.Read(strings.NewReader(text)))
	return r
}

// Of one test the last word counts; of several tests the worst.
func TestResults(t *testing.T) {
	const head = `compat: {"table":"test","row":["a","1"],"kernel":"6.18","commit":"c1",`
	r := read(t, "a log\r\n"+
		head+`"column":"ADD","pass":false,"test":"p TestA"}`+"\r\n"+
		head+`"column":"ADD","pass":true,"test":"p TestA"}`+"\n"+
		head+`"column":"ADD","pass":true,"test":"p TestB"}`+"\n"+
		head+`"column":"GC","pass":true,"limit":"too old","test":"p TestA"}`+"\n"+
		head+`"column":"GC","pass":true,"test":"p TestB"}`+"\n"+
		strings.Replace(head, `"a","1"`, `"c","3"`, 1)+`"column":"GC","pass":true,"limit":"too old","test":"p TestA"}`+"\n"+
		strings.Replace(head, `"a","1"`, `"c","3"`, 1)+`"column":"GC","pass":false,"test":"p TestB"}`+"\n"+
		`compat: {"table":"other","row":["a"],"column":"x","pass":true,"test":"p TestA"}`+"\n")
	got, err := r.Results(table(t))
	testutil.Must(t, err)
	want := []Result{
		{Row: []string{"a", "1"}, Column: "ADD", Result: Pass, Kernel: "6.18", Commit: "c1", Day: "2026-01-02",
			Tests: []string{"p TestA", "p TestB"}},
		{Row: []string{"a", "1"}, Column: "GC", Result: Limit, Limit: "too old", Kernel: "6.18", Commit: "c1", Day: "2026-01-02",
			Tests: []string{"p TestA", "p TestB"}},
		{Row: []string{"c", "3"}, Column: "GC", Result: Fail, Kernel: "6.18", Commit: "c1", Day: "2026-01-02",
			Tests: []string{"p TestA", "p TestB"}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("results (-want +got):\n%s", d)
	}
	if err := new(Run).Read(strings.NewReader("compat: {")); err == nil {
		t.Error("half a record was read")
	}
	if _, err := read(t, head+`"column":"none","pass":true,"test":"p TestA"}`).Results(table(t)); err == nil {
		t.Error("a column that the table does not have was taken")
	}
}

func result(row, version, column, result string) Result {
	return Result{Row: []string{row, version}, Column: column, Result: result, Kernel: "6.18", Commit: "c1", Day: "2026-01-02",
		Tests: []string{"p TestA"}}
}

func TestMerge(t *testing.T) {
	known := []Result{result("a", "1", "ADD", Pass), result("a", "1", "GC", Pass), result("b", "1", "ADD", Fail)}
	// The same version: only what ran is replaced.
	got := Merge(table(t), known, []Result{result("z", "1", "GC", Pass), result("b", "1", "ADD", Pass), result("a", "1", "GC", Fail)})
	want := []Result{result("a", "1", "ADD", Pass), result("a", "1", "GC", Fail), result("b", "1", "ADD", Pass), result("z", "1", "GC", Pass)}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the same version (-want +got):\n%s", d)
	}
	// Another version: what the old one could is not known of the new one.
	got = Merge(table(t), known, []Result{result("a", "2", "ADD", Pass)})
	want = []Result{result("a", "2", "ADD", Pass), result("b", "1", "ADD", Fail)}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("another version (-want +got):\n%s", d)
	}
}

func TestCompare(t *testing.T) {
	known := []Result{result("a", "1", "ADD", Pass), result("a", "1", "GC", Pass), result("b", "1", "ADD", Pass)}
	if got := Compare(table(t), nil, known[:1]); len(got) != 1 || !strings.Contains(got[0], "does not have it yet") {
		t.Errorf("a cell that is new: %q", got)
	}
	if got := Compare(table(t), known, known[:2]); len(got) > 0 {
		t.Errorf("nothing differs, and b did not run: %q", got)
	}
	// Another version alone is no difference: Debian moves on.
	if got := Compare(table(t), known, []Result{result("a", "2", "ADD", Pass), result("a", "2", "GC", Pass)}); len(got) > 0 {
		t.Errorf("another version: %q", got)
	}
	limit := result("b", "1", "ADD", Limit)
	limit.Limit = "why"
	got := Compare(table(t), known, []Result{result("a", "1", "ADD", Fail), result("z", "1", "ADD", Pass), limit})
	want := []string{
		`table test: ["a" "1"], ADD: the table says pass, the run showed fail`,
		`table test: ["b" "1"], ADD: the table says pass, the run showed limit (why)`,
		`table test: ["a" "1"], GC: the table says pass by p TestA, which the run did not record`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("differences (-want +got):\n%s", d)
	}
}

func TestRender(t *testing.T) {
	limit := result("a", "1", "GC", Limit)
	limit.Limit = "a is too old"
	later := result("z", "1", "ADD", Fail)
	later.Day, later.Commit, later.Kernel = "2026-03-04", "c2", "6.1"
	results := []Result{result("a", "1", "ADD", Pass), limit, later}
	tab := table(t)
	golden.Check(t, "rows.md", Render(tab, results))
	tab.Across = true
	golden.Check(t, "across.md", Render(tab, results))
	golden.Check(t, "empty.md", Render(tab, nil))
}

// A table of what tests showed in their own words.
func TestSay(t *testing.T) {
	tab, err := parseTable("two", []byte(`{"page": "docs/x.md", "head": ["", "theirs"], "keys": 2, "rows": [["speed", "slow"], ["size", "large"]], "columns": ["ours"], "tests": true}`))
	if err != nil || tab.Page != "docs/x.md" {
		t.Fatal(tab, err)
	}
	const head = `compat: {"table":"two","column":"ours","kernel":"6.18","commit":"c1","pass":true,`
	results, err := read(t, head+`"row":["speed","slow"],"value":"fast","test":"p TestA/sub"}`+"\n"+head+`"row":["speed","slow"],"value":"9 times","test":"p TestB"}`+"\n").Results(tab)
	testutil.Must(t, err)
	golden.Check(t, "said.md", Render(tab, results))

	dir := t.TempDir()
	t.Setenv(Env, dir)
	t.Run("says", func(t *testing.T) { Say(t, "hosts", "names", "a list") })
	if text, err := os.ReadFile(filepath.Join(dir, "records")); err != nil || !strings.Contains(string(text), `"value":"a list","pass":true`) {
		t.Errorf("%v: %s", err, text)
	}
}

func TestFill(t *testing.T) {
	doc := "before\n<!-- compat a -->\nold\n<!-- end of compat a -->\nafter\n"
	got, err := Fill(doc, "a", "new\n")
	if want := strings.Replace(doc, "old", "new", 1); err != nil || got != want {
		t.Errorf("%v:\n%s", err, got)
	}
	for _, bad := range []string{"", "<!-- compat a -->\n", "<!-- end of compat a -->"} {
		if _, err := Fill(bad, "a", "new\n"); err == nil || !strings.Contains(err.Error(), "no place for table a") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestResultsFile(t *testing.T) {
	dir := t.TempDir()
	if got, err := ReadResults(dir, "none"); err != nil || got != nil {
		t.Errorf("no file: %v, %v", got, err)
	}
	want := []Result{result("a", "1", "ADD", Pass), result("b", "1", "ADD", Fail)}
	testutil.Must(t, WriteResults(dir, "x", want))
	got, err := ReadResults(dir, "x")
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "x.json"), []byte(`[{"rows": 1}]`), 0o644))
	if _, err := ReadResults(dir, "x"); err == nil {
		t.Error("an unknown field was read")
	}
}
