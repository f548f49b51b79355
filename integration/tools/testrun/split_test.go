package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/testutil"
)

// Each test of a split package runs in a process of its own and in the package's folder. None gets lost, whatever ends it.
func TestSplit(t *testing.T) {
	testutil.RequireRoot(t) // starts go test
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"go.mod": "module example.org/a/b\n\ngo 1.26\n",
		"p/p_test.go": `package p

import ("os"; "testing")

var ran bool

func once(t *testing.T) {
	if ran { t.Fatal("two tests in one process") }
	ran = true
	if _, err := os.Stat("p_test.go"); err != nil { t.Fatal(err) }
}

func TestPasses(t *testing.T) { once(t); t.Run("below", func(t *testing.T) {}) }
func TestPassesToo(t *testing.T) { once(t) }
func TestFails(t *testing.T) { once(t); t.Error("wrong") }
func TestSkips(t *testing.T) { t.Skip("no such thing") }
func TestExits(t *testing.T) { os.Exit(3) }
func FuzzStored(f *testing.F) { f.Add(1); f.Fuzz(func(t *testing.T, n int) {}) }
func BenchmarkNone(b *testing.B) { b.Fatal("no test") }
`,
		"leaks/p_test.go":  "package p\n\nimport (\"os\"; \"testing\")\n\nvar ran bool\n\nfunc TestMain(m *testing.M) { if m.Run() == 0 && ran { os.Exit(1) } }\nfunc TestA(t *testing.T) { ran = true }\n",
		"broken/p_test.go": "package p\n\nvar a = oh\n",
		"other/p_test.go":  "package p\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) {}\n",
	} {
		testutil.WriteFile(t, name, text)
	}
	o := options{parallel: 1, shards: 3, timeout: time.Minute, split: folders{"p", "nowhere", "leaks", "broken"}, stopwatch: func() func() time.Duration { return func() time.Duration { return 0 } }}
	o.packages = []string{"./..."}
	packages, err := list(t.Context(), o)
	testutil.Must(t, err)
	var out strings.Builder
	r := newReport(&out)
	testutil.Must(t, runTests(t.Context(), o, packages, r))
	all := out.String()
	out.Reset()
	if r.close(nil, false) {
		t.Error("failures are no success")
	}
	const want = `5 passed, 4 failed, 1 skipped
failed   p TestExits
failed   p TestFails
skipped  p TestSkips: no such thing
`
	lines := slices.Sorted(strings.Lines(out.String()))
	if diff := cmp.Diff(want, strings.Join(lines, "")); diff != "" {
		t.Errorf("report (-want +got):\n%s\n%s", diff, all)
	}
	for _, want := range []string{"broken does not build", "undefined: oh", "FAIL  leaks", "FAIL  p (", "ok    other"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
}
