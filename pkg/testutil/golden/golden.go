// Package golden owns the comparison of a test's output with a file beside the test. It writes such a file only when the
// test binary is run with -update, and never deletes one.
//
// It is a package of its own so that the flag stands in test binaries that use it and nowhere else.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// Check compares got with the file testdata/<name>. With -update it writes the file.
func Check(t testing.TB, name string, got string) {
	t.Helper()
	path := filepath.Join("testdata", filepath.FromSlash(name))
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatalf("make folder for golden file: %v", err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatalf("write golden file: %v", err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("read golden file (run with -update to write it): %v", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got; run with -update if the new text is right):\n%s", path, diff)
	}
}
