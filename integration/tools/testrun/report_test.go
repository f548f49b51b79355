package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestBegin(t *testing.T) {
	for _, tc := range []struct {
		first folders
		want  string
	}{
		{folders{"pkg/b"}, "example.org/m/n/pkg/b example.org/m/n/a example.org/m/n/c"},
		{folders{"c", "nowhere", "pkg/b"}, "example.org/m/n/c example.org/m/n/pkg/b example.org/m/n/a"},
		{nil, "example.org/m/n/a example.org/m/n/pkg/b example.org/m/n/c"},
		{folders{"b"}, "example.org/m/n/a example.org/m/n/pkg/b example.org/m/n/c"},
	} {
		packages := []string{"example.org/m/n/a", "example.org/m/n/pkg/b", "example.org/m/n/c"}
		begin(packages, tc.first)
		if got := strings.Join(packages, " "); got != tc.want {
			t.Errorf("-first %s: %s, want %s", &tc.first, got, tc.want)
		}
	}
}

func TestLongest(t *testing.T) {
	var out strings.Builder
	r := newReport(&out)
	for _, e := range []event{
		{Action: "pass", Package: "p", Test: "TestA", Elapsed: 3},
		{Action: "pass", Package: "p", Test: "TestB/one", Elapsed: 9},
		{Action: "pass", Package: "p", Test: "TestB", Elapsed: 10},
		{Action: "pass", Package: "q", Test: "TestC", Elapsed: 2},
		{Action: "pass", Package: "q", Test: "TestD"},
	} {
		r.add(e)
	}
	r.longest(2)
	r.longest(0)
	if want := "long     p TestB (10.0s)\nlong     p TestA (3.0s)\n"; out.String() != want {
		t.Errorf("got\n%s, want\n%s", out.String(), want)
	}
}

// What `go test -json` says, and what the report makes of it.
func TestReport(t *testing.T) {
	tests := map[string]struct {
		events  string
		allowed string
		ci      bool
		want    []string // lines at the end of the report
		ok      bool
	}{
		"subtests count, their parent does not": {
			events: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/one"}
{"Action":"pass","Package":"p","Test":"TestA/one"}
{"Action":"run","Package":"p","Test":"TestA/two"}
{"Action":"pass","Package":"p","Test":"TestA/two"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}`,
			want: []string{"2 passed, 0 failed, 0 skipped"}, ok: true,
		},
		"a subtest with slashes in its name": {
			events: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/ipv4/udp"}
{"Action":"pass","Package":"p","Test":"TestA/ipv4/udp"}
{"Action":"run","Package":"p","Test":"TestA/ipv6/udp"}
{"Action":"fail","Package":"p","Test":"TestA/ipv6/udp"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`,
			want: []string{"failed   p TestA/ipv6/udp", "1 passed, 1 failed, 0 skipped"},
		},
		"a failed subtest fails once": {
			events: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/one"}
{"Action":"output","Package":"p","Test":"TestA/one","Output":"    a_test.go:7: wrong\n"}
{"Action":"fail","Package":"p","Test":"TestA/one"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`,
			want: []string{"failed   p TestA/one", "0 passed, 1 failed, 0 skipped"},
		},
		"a test that the package's end cut off": {
			events: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Test":"TestB","Output":"panic: oh\n"}
{"Action":"fail","Package":"p"}`,
			want: []string{"failed   p TestB", "1 passed, 1 failed, 0 skipped"},
		},
		"a failed test that was run again": {
			events: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}`,
			want: []string{"unsteady p TestA: failed among the others, then passed", "1 passed, 0 failed, 0 skipped"}, ok: true,
		},
		"a parent that failed itself, whose other subtests were run in a second job": {
			events: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/one"}
{"Action":"pass","Package":"p","Test":"TestA/one"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/two"}
{"Action":"pass","Package":"p","Test":"TestA/two"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}`,
			want: []string{"failed   p TestA", "2 passed, 1 failed, 0 skipped"},
		},
		"a subtest that was run again": {
			events: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/one"}
{"Action":"fail","Package":"p","Test":"TestA/one"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/one"}
{"Action":"pass","Package":"p","Test":"TestA/one"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}`,
			want: []string{"unsteady p TestA/one: failed among the others, then passed", "1 passed, 0 failed, 0 skipped"}, ok: true,
		},
		"a race is no matter of chance": {
			events: `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"testing.go:1: race detected during execution of test\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}`,
			want: []string{"failed   p TestA", "0 passed, 1 failed, 0 skipped"},
		},
		"a package that does not build": {
			events: `{"Action":"run","Package":"q","Test":"TestA"}
{"Action":"pass","Package":"q","Test":"TestA"}
{"ImportPath":"p [p.test]","Action":"build-output","Output":"p/a.go:1: oh\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}`,
			want: []string{"1 passed, 1 failed, 0 skipped"},
		},
		"skips with their reasons, outside CI": {
			events: `{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"SKIP-REASON: TestB: needs root\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    t.go:2: something else\n"}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Test":"TestC","Output":"    c_test.go:9: no dummy links here\n"}
{"Action":"skip","Package":"p","Test":"TestC"}
{"Action":"pass","Package":"p"}`,
			want: []string{"skipped  p TestB: needs root", "skipped  p TestC: no dummy links here", "1 passed, 0 failed, 2 skipped"}, ok: true,
		},
		"skips in CI, one of them allowed": {
			events: `{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestC","Output":"    c_test.go:9: no dummy links here\n"}
{"Action":"skip","Package":"p","Test":"TestC"}
{"Action":"skip","Package":"p","Test":"TestD"}`,
			allowed: "no dummy links", ci: true,
			want: []string{
				"skipped  p TestC: no dummy links here",
				"skipped  p TestD: no reason given   <- not on the list of allowed skips",
				"1 tests were skipped here that must run in CI", "1 passed, 0 failed, 2 skipped",
			},
		},
		"no tests are no success": {want: []string{"no tests found", "0 passed, 0 failed, 0 skipped"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			r := newReport(&out)
			testutil.Must(t, readEvents(strings.NewReader(tc.events), r))
			out.Reset()
			var allowed []*regexp.Regexp
			if tc.allowed != "" {
				allowed = append(allowed, regexp.MustCompile(tc.allowed))
			}
			if ok := r.close(allowed, tc.ci); ok != tc.ok {
				t.Errorf("ok is %v, want %v", ok, tc.ok)
			}
			if d := cmp.Diff(tc.want, strings.Split(strings.TrimRight(out.String(), "\n"), "\n")); d != "" {
				t.Errorf("report (-want +got):\n%s", d)
			}
		})
	}
}

func TestFuzzResultCounts(t *testing.T) {
	var out strings.Builder
	r := newReport(&out)
	r.fuzzed("p", "FuzzA", time.Second, true, nil, "")
	r.fuzzed("p", "FuzzB", time.Second, false, nil, "Failing input written to testdata/fuzz/FuzzB/1\n")
	if r.close(nil, true) {
		t.Error("a finding is no success")
	}
	for _, want := range []string{"Failing input written", "failed   p FuzzB (fuzzed)", "1 passed, 1 failed, 0 skipped"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

// What a search by chance finds is kept and named, and decides nothing; a stored input that fails does.
func TestFuzzFindingIsKept(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for name, text := range map[string]string{
		"go.mod": "module m\n\ngo 1.26\n", "a.go": "package m\n",
		"a_test.go": `package m

import "testing"

func FuzzA(f *testing.F) { f.Add(""); f.Fuzz(func(t *testing.T, in string) { if len(in) > 0 { t.Fatal(in) } }) }
`,
	} {
		testutil.Must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	var out strings.Builder
	r := newReport(&out)
	o := options{fuzzTime: 20 * time.Second, keep: filepath.Join(dir, "kept")}
	testutil.Must(t, fuzz(t.Context(), o, []string{"m"}, r))
	if !r.close(nil, true) || !strings.Contains(out.String(), "found    m FuzzA: "+o.keep) {
		t.Errorf("a finding was not kept and named, or is a failure:\n%s", out.String())
	}
	if kept, _ := filepath.Glob(filepath.Join(o.keep, "FuzzA", "*")); len(kept) != 1 {
		t.Fatalf("kept: %v, want one input", kept)
	}
	if left, _ := filepath.Glob("testdata/fuzz/FuzzA/*"); len(left) != 0 {
		t.Errorf("left in the tree: %v", left)
	}

	// The same input, committed: now it is a failure.
	stored := filepath.Join("testdata", "fuzz", "FuzzA")
	testutil.Must(t, errors.Join(os.RemoveAll(stored), os.Rename(filepath.Join(o.keep, "FuzzA"), stored)))
	r = newReport(&out)
	testutil.Must(t, fuzz(t.Context(), o, []string{"m"}, r))
	if r.close(nil, true) {
		t.Errorf("a stored input that fails is no success:\n%s", out.String())
	}
}

func TestSplit(t *testing.T) {
	var below folders
	testutil.Must(t, below.Set("./integration/bench/,integration/faults"))
	together, alone := split([]string{"m/pkg/a", "m/integration/bench", "m/integration/bench/paired", "m/integration/benches", "m/integration/faults"}, below)
	if d := cmp.Diff([]string{"m/pkg/a", "m/integration/benches"}, together); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"m/integration/bench", "m/integration/bench/paired", "m/integration/faults"}, alone); d != "" {
		t.Error(d)
	}
	if together, alone = split([]string{"m/a"}, nil); len(together) != 1 || len(alone) != 0 {
		t.Errorf("without folders: %v, %v", together, alone)
	}
	if err := below.Set("./pkg/a,"); err == nil {
		t.Error("an empty folder would be every package's")
	}
}

func TestReadAllowed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "skips")
	testutil.Must(t, os.WriteFile(file, []byte("# why\n\nno dummy links\n"), 0o600))
	got, err := readAllowed(file)
	if err != nil || len(got) != 1 || !got[0].MatchString("p T: no dummy links here") {
		t.Errorf("%v, %v", got, err)
	}
	testutil.Must(t, os.WriteFile(file, []byte("ok\n(\n"), 0o600))
	if _, err := readAllowed(file); err == nil || !strings.Contains(err.Error(), "skips:2: ") {
		t.Errorf("%v, want an error that names line 2", err)
	}
}

// What may be tried again, and what is left of a failure that is forgiven.
func TestAgain(t *testing.T) {
	feed := func(events string) (*report, *strings.Builder) {
		var out strings.Builder
		r := newReport(&out)
		testutil.Must(t, readEvents(strings.NewReader(events), r))
		return r, &out
	}
	const subtest = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/one"}
{"Action":"fail","Package":"p","Test":"TestA/one"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestAB"}
{"Action":"pass","Package":"p","Test":"TestAB"}
{"Action":"fail","Package":"p"}`
	r, out := feed(subtest)
	failed := r.again()
	if len(failed) != 1 || failed[0].name != "TestA" {
		t.Fatalf("to be tried again: %+v", failed)
	}
	r.forgive(failed[0], "passed 4 of 4")
	if !r.close(nil, true) || !strings.HasSuffix(out.String(), "unsteady p TestA: passed 4 of 4\n2 passed, 0 failed, 0 skipped\n") {
		t.Errorf("forgiven:\n%s", out)
	}
	for name, events := range map[string]string{
		"a race": `{"Action":"output","Package":"p","Test":"TestA","Output":"    testing.go:1465: race detected during execution of test\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`,
		"a panic, and another failure beside it": `{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`,
		"a leak after all tests": `{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"goleak: Errors on successful test run\n"}
{"Action":"fail","Package":"p"}`,
	} {
		r, out := feed(events)
		if failed := r.again(); len(failed) > 0 || r.close(nil, true) {
			t.Errorf("%s: %d tests may be tried again:\n%s", name, len(failed), out)
		}
	}
}

// TestTryAgain runs real tests: of a package that has one that fails the first time only, and one that always fails.
func TestTryAgain(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module again\n\ngo 1.24\n",
		"a_test.go": `package again

import (
	"os"
	"testing"
)

func TestOnce(t *testing.T) {
	if f, err := os.OpenFile("mark", os.O_CREATE|os.O_EXCL, 0o600); err == nil {
		_ = f.Close()
		t.Error("the first time")
	}
}

func TestAlways(t *testing.T) {
	if os.Getenv("ALWAYS") != "" {
		t.Error("always")
	}
}
`,
	} {
		testutil.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	t.Chdir(dir)
	o := options{again: 2, parallel: 1, timeout: time.Minute}
	for _, always := range []string{"", "1"} {
		t.Setenv("ALWAYS", always)
		_ = os.Remove(filepath.Join(dir, "mark"))
		var out strings.Builder
		r := newReport(&out)
		testutil.Must(t, goTest(t.Context(), o, 1, []string{"again"}, r))
		testutil.Must(t, tryAgain(t.Context(), o, r, 0))
		ok := r.close(nil, true)
		if ok != (always == "") || !strings.Contains(out.String(), "unsteady again TestOnce: failed among the others, then passed 2 of 2\n") ||
			strings.Contains(out.String(), "failed   again TestAlways") != (always != "") {
			t.Errorf("ALWAYS=%q: %v\n%s", always, ok, out.String())
		}
	}
}
