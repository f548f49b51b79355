package cited

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestInText(t *testing.T) {
	const text = "`a/b.TestX`, `TestY`, `a/b.TestX`: `cni-callers.FuzzZ`, `a/b.Testing`, `make test`, a/b.TestW"
	want := []Test{{"a/b", "TestX"}, {"cni-callers", "FuzzZ"}}
	if d := cmp.Diff(want, InText(text)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// Only what the go command would run is found, by its whole name.
func TestFind(t *testing.T) {
	root := t.TempDir()
	testutil.Must(t, os.Mkdir(filepath.Join(root, "a"), 0o700))
	for name, text := range map[string]string{
		"a.go": "package a\nfunc TestInProduct(t *testing.T) {}\n",
		"a_test.go": "package a\nimport \"testing\"\nfunc TestWhole(t *testing.T) {}\nfunc FuzzA(f *testing.F) {}\n" +
			"func TestHelp(t *testing.T, n int) {}\nfunc TestNone() {}\n" +
			"// func TestComment(t *testing.T) {}\ntype s struct{}\nfunc (s) TestMethod(t *testing.T) {}\n",
		"a_timing_test.go": "//go:build timing && linux\n\npackage a\nimport \"testing\"\nfunc TestTimingA(t *testing.T) {}\n",
	} {
		testutil.Must(t, os.WriteFile(filepath.Join(root, "a", name), []byte(text), 0o600))
	}
	for name, want := range map[string]string{
		"TestWhole": "a_test.go", "FuzzA": "a_test.go", "TestTimingA": "a_timing_test.go",
		"TestWho": "", "TestHelp": "", "TestNone": "", "TestComment": "", "TestMethod": "", "TestInProduct": "",
	} {
		got, err := Find(root, Test{"a", name})
		if got.File != want || (err == nil) != (want != "") {
			t.Errorf("%s: found in %q, want %q: %v", name, got.File, want, err)
		}
	}
	if _, err := Find(root, Test{"b", "TestWhole"}); err == nil {
		t.Error("a folder that is not there has tests")
	}
	if s, err := Find(root, Test{"a", "TestTimingA"}); err != nil || s.Built(nil) || !s.Built([]string{"timing"}) {
		t.Errorf("a timing test is built with other tags than its own: %v", err)
	}
}
