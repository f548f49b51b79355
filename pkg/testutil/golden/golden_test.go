package golden

import (
	"os"
	"path/filepath"
	"testing"
)

// recorder takes a failure that is expected.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Errorf(string, ...any) { r.failed = true }

func TestCheck(t *testing.T) {
	t.Chdir(t.TempDir())
	was := *update
	t.Cleanup(func() { *update = was })

	*update = true
	Check(t, "sub/case.golden", "one\n")
	if got, err := os.ReadFile(filepath.Join("testdata", "sub", "case.golden")); err != nil || string(got) != "one\n" {
		t.Fatalf("wrote %q, %v", got, err)
	}
	*update = false
	Check(t, "sub/case.golden", "one\n")
	r := &recorder{TB: t}
	if Check(r, "sub/case.golden", "two\n"); !r.failed {
		t.Error("a difference passed")
	}
}
