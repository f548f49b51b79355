package docs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The tables of docs/scale.md are drawn from the result that `make scale` left.
func TestScale(t *testing.T) {
	var tables map[string]struct {
		Head []string
		Rows [][]string
	}
	if err := json.Unmarshal([]byte(read(t, "integration/steering/testdata/scale.json")), &tables); err != nil || len(tables) == 0 {
		t.Fatalf("%d tables: %v", len(tables), err)
	}
	page := read(t, "docs/scale.md")
	want := page
	for name, table := range tables {
		begin, end := "<!-- scale "+name+" -->\n", "<!-- end of scale -->\n"
		before, rest, found := strings.Cut(want, begin)
		_, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			t.Fatalf("docs/scale.md has no place for the table %q", name)
		}
		line := func(cells []string) string { return "| " + strings.Join(cells, " | ") + " |\n" }
		text := line(table.Head) + strings.Repeat("| --- ", len(table.Head)) + "|\n"
		for _, row := range table.Rows {
			text += line(row)
		}
		want = before + begin + text + end + after
	}
	if n := strings.Count(page, "<!-- scale "); n != len(tables) {
		t.Errorf("docs/scale.md has places for %d tables, the result has %d", n, len(tables))
	}
	if *update {
		if err := os.WriteFile(filepath.Join(root, "docs/scale.md"), []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if d := cmp.Diff(want, page); d != "" {
		t.Errorf("docs/scale.md is not drawn from the result: run this test with -update (-want +got):\n%s", d)
	}
}
