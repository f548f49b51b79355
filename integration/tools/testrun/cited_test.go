package main

import (
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// A cited test of these packages has to run and must not be skipped; one of other packages, tags or names is another target's.
func TestCited(t *testing.T) {
	root := t.TempDir()
	t.Chdir(root)
	for name, text := range map[string]string{
		"page.md": "`a.TestRan`, `a.TestSkipped`, `a.TestNever`, `a.TestTimingA`, `b.TestB`",
		"one.md":  "`a.TestRan`", "two.md": "`a.TestSkipped`",
		"a/a_test.go": "package a\nimport \"testing\"\nfunc TestRan(t *testing.T) {}\n" +
			"func TestSkipped(t *testing.T) {}\nfunc TestNever(t *testing.T) {}\n",
		"a/timed_test.go": "//go:build timing\n\npackage a\nimport \"testing\"\nfunc TestTimingA(t *testing.T) {}\n",
	} {
		testutil.WriteFile(t, name, text)
	}
	const module = "example.com/owner/repository/"
	for name, tc := range map[string]struct {
		o    options
		want []string
		ok   bool
	}{
		"all":       {options{cited: "page.md"}, []string{"a.TestSkipped: skipped", "a.TestNever: did not run"}, false},
		"by name":   {options{cited: "page.md", run: "^TestRan$"}, nil, true},
		"by tag":    {options{cited: "page.md", run: "^TestTiming", tags: "timing"}, []string{"a.TestTimingA: did not run"}, false},
		"two pages": {options{cited: "one.md,two.md"}, []string{"a.TestSkipped: skipped"}, false},
		"no page":   {options{}, nil, true},
		"one shard": {options{cited: "page.md", run: "^TestSkipped$"}, []string{"a.TestSkipped: skipped"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			r := newReport(&out)
			for _, e := range []event{
				{Action: "pass", Package: module + "a", Test: "TestRan/sub"}, {Action: "skip", Package: module + "a", Test: "TestRan/skipped"},
				{Action: "pass", Package: module + "a", Test: "TestRan"}, {Action: "skip", Package: module + "a", Test: "TestSkipped"},
			} {
				r.add(e)
			}
			tests, err := citedTests(tc.o, []string{module + "a"})
			testutil.Must(t, err)
			testutil.Equal(t, "missing", tc.want, r.missing(tests))
			if ok, err := r.closeCited(tc.o, nil, []string{module + "a"}); ok != tc.ok || err != nil {
				t.Errorf("passes: %v, %v, want %v\n%s", ok, err, tc.ok, out.String())
			}
		})
	}
	if _, err := citedTests(options{cited: "none.md"}, nil); err == nil {
		t.Error("a page that is not there is read")
	}
}
