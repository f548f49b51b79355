package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

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
	testutil.Equal(t, "report", "long     p TestB (10.0s)\nlong     p TestA (3.0s)\n", out.String())
}

// printed is what `go test -json` prints of package p. A test ends by its last word; an output stands in quotes.
func printed(t *testing.T, lines ...string) string {
	t.Helper()
	var out strings.Builder
	for _, line := range lines {
		if strings.HasPrefix(line, "{") {
			out.WriteString(line + "\n")
			continue
		}
		e := event{Package: "p"}
		e.Action, line, _ = strings.Cut(line, " ")
		e.Test, e.Output, _ = strings.Cut(line, " ")
		text, err := json.Marshal(e)
		testutil.Must(t, err)
		out.Write(append(text, '\n'))
	}
	return out.String()
}

// TestReport has events as `go test -json` prints them.
func TestReport(t *testing.T) {
	tests := map[string]struct {
		events  []string
		allowed string
		ci      bool
		want    []string // lines at the end of the report
		ok      bool
	}{
		"subtests count, their parent does not": {
			events: []string{"run TestA", "run TestA/one", "pass TestA/one", "run TestA/two", "pass TestA/two", "pass TestA", "pass"},
			want:   []string{"2 passed, 0 failed, 0 skipped"}, ok: true,
		},
		"a subtest with slashes in its name": {
			events: []string{"run TestA", "run TestA/ipv4/udp", "pass TestA/ipv4/udp", "run TestA/ipv6/udp", "fail TestA/ipv6/udp", "fail TestA", "fail"},
			want:   []string{"failed   p TestA/ipv6/udp", "1 passed, 1 failed, 0 skipped"},
		},
		"a failed subtest fails once": {
			events: []string{"run TestA", "run TestA/one", "output TestA/one     a_test.go:7: wrong\n", "fail TestA/one", "fail TestA", "fail"},
			want:   []string{"failed   p TestA/one", "0 passed, 1 failed, 0 skipped"},
		},
		"a test that the package's end cut off": {
			events: []string{"run TestA", "pass TestA", "run TestB", "output TestB panic: oh\n", "fail"},
			want:   []string{"failed   p TestB", "1 passed, 1 failed, 0 skipped"},
		},
		"a failed test that was run again": {
			events: []string{"run TestA", "fail TestA", "fail", "run TestA", "pass TestA", "pass"},
			want:   []string{"failed   p TestA", "0 passed, 1 failed, 0 skipped"},
		},
		"a parent that failed itself, whose other subtests were run in a second job": {
			events: []string{"run TestA", "run TestA/one", "pass TestA/one", "fail TestA", "fail", "run TestA", "run TestA/two", "pass TestA/two", "pass TestA", "pass"},
			want:   []string{"failed   p TestA", "2 passed, 1 failed, 0 skipped"},
		},
		"a package that does not build": {
			events: []string{`{"Action":"run","Package":"q","Test":"TestA"}`, `{"Action":"pass","Package":"q","Test":"TestA"}`,
				`{"ImportPath":"p [p.test]","Action":"build-output","Output":"p/a.go:1: oh\n"}`, `{"ImportPath":"p [p.test]","Action":"build-fail"}`,
				`{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}`},
			want: []string{"1 passed, 1 failed, 0 skipped"},
		},
		"skips with their reasons, outside CI": {
			events: []string{"pass TestA", "output TestB SKIP-REASON: TestB: needs root\n", "output TestB     t.go:2: something else\n", "skip TestB",
				"output TestC     c_test.go:9: no dummy links here\n", "skip TestC", "pass"},
			want: []string{"skipped  p TestB: needs root", "skipped  p TestC: no dummy links here", "1 passed, 0 failed, 2 skipped"}, ok: true,
		},
		"skips in CI, one of them allowed": {
			events:  []string{"pass TestA", "output TestC     c_test.go:9: no dummy links here\n", "skip TestC", "skip TestD"},
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
			testutil.Must(t, readEvents(strings.NewReader(printed(t, tc.events...)), r.stray, r.add))
			out.Reset()
			var allowed []*regexp.Regexp
			if tc.allowed != "" {
				allowed = append(allowed, regexp.MustCompile(tc.allowed))
			}
			testutil.Equal(t, "ok", tc.ok, r.close(allowed, tc.ci))
			testutil.Equal(t, "report", tc.want, strings.Split(strings.TrimRight(out.String(), "\n"), "\n"))
		})
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
	_, err = readAllowed(file)
	testutil.WantError(t, err, "skips:2: ")
}

// A quarantined test is named and does not decide; one that ends its whole package does.
func TestQuarantine(t *testing.T) {
	const begun = `{"Action":"run","Package":"m/n/o/p","Test":"TestA"}
{"Action":"run","Package":"m/n/o/p","Test":"TestA/one"}
`
	const failed = begun + `{"Action":"fail","Package":"m/n/o/p","Test":"TestA/one"}
{"Action":"fail","Package":"m/n/o/p","Test":"TestA"}
{"Action":"run","Package":"m/n/o/p","Test":"TestAB"}
{"Action":"%s","Package":"m/n/o/p","Test":"TestAB"}
{"Action":"fail","Package":"m/n/o/p"}`
	for name, tc := range map[string]struct {
		events string
		ok     bool
		last   string
	}{
		"alone":             {strings.Replace(failed, "%s", "pass", 1), true, "1 passed, 0 failed, 0 skipped\n"},
		"next to another":   {strings.Replace(failed, "%s", "fail", 1), false, "0 passed, 1 failed, 0 skipped\n"},
		"ended its package": {begun + `{"Action":"fail","Package":"m/n/o/p"}`, false, "0 passed, 1 failed, 0 skipped\n"},
	} {
		var out strings.Builder
		r := newReport(&out)
		r.quarantined = map[string]string{"m/n/o/p TestA": "why"}
		testutil.Must(t, readEvents(strings.NewReader(tc.events), r.stray, r.add))
		if ok := r.close(nil, true); ok != tc.ok || !strings.HasSuffix(out.String(), tc.last) || tc.ok && !strings.Contains(out.String(), "failed in quarantine m/n/o/p TestA: why\n") {
			t.Errorf("%s: %v\n%s", name, ok, &out)
		}
	}
}

func TestReadQuarantine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "quarantine")
	for text, want := range map[string]string{
		"# why\n\npkg/a TestA: slow\n":             "",
		"pkg/a TestA\n":                            `quarantine:1: want "package Test: reason"`,
		"#\nTestA: slow\n":                         `quarantine:2: want "package Test: reason"`,
		"p TestA/sub: slow\n":                      `quarantine:1: want "package Test: reason"`,
		"p A: x\np B: x\np C: x\np D: x\np E: x\n": "",
		"p A: x\np B: x\np C: x\np D: x\np E: x\np F: one more than allowed\n": "quarantine:6: more than 5 tests",
	} {
		testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
		if _, err := readQuarantine(file); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
