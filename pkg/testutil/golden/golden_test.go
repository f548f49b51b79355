package golden

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
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

func TestPart(t *testing.T) {
	t.Chdir(t.TempDir())
	was := *update
	t.Cleanup(func() { *update = was })
	const page = "# Page\n<!-- a -->\nold\n<!-- end of a -->\n<!-- b -->\n<!-- end of b -->\n"
	if err := os.WriteFile("page.md", []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	Part(t, "page.md", "a", "old\n")
	r := &recorder{TB: t}
	if Part(r, "page.md", "a", "new\n"); !r.failed {
		t.Error("a difference passed")
	}
	*update = true
	Part(t, "page.md", "a", "new\n")
	if got, err := os.ReadFile("page.md"); err != nil || string(got) != strings.Replace(page, "old", "new", 1) {
		t.Errorf("wrote %q, %v", got, err)
	}
}

func TestCases(t *testing.T) {
	t.Chdir(t.TempDir())
	was := *update
	t.Cleanup(func() { *update = was })
	const given = "-- one --\n1\n2\n-- two --\n-- no section\n"
	if err := os.WriteFile("case.txt", []byte(given), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, *update = range []bool{true, false} {
		Cases(t, "*.txt", func(t *testing.T, sections map[string]string) string {
			if !maps.Equal(sections, map[string]string{"one": "1\n2\n", "two": "-- no section\n"}) || !strings.Contains(t.Name(), "/case") {
				t.Errorf("%s has %q", t.Name(), sections)
			}
			return "3\n"
		})
	}
	if got, err := os.ReadFile("case.txt"); err != nil || string(got) != given+"-- want --\n3\n" {
		t.Errorf("wrote %q, %v", got, err)
	}
}
