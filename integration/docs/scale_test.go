package docs

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil/golden"
)

// The tables of docs/project/scale.md are drawn from the result that `make scale` left.
func TestScale(t *testing.T) {
	var tables map[string]struct {
		Head []string
		Rows [][]string
	}
	if err := json.Unmarshal([]byte(read(t, "integration/steering/testdata/scale.json")), &tables); err != nil || len(tables) == 0 {
		t.Fatalf("%d tables: %v", len(tables), err)
	}
	for name, table := range tables {
		line := func(cells []string) string { return "| " + strings.Join(cells, " | ") + " |\n" }
		text := line(table.Head) + strings.Repeat("| --- ", len(table.Head)) + "|\n"
		for _, row := range table.Rows {
			text += line(row)
		}
		golden.Part(t, filepath.Join(root, "docs/project/scale.md"), "scale "+name, text)
	}
	if n := strings.Count(read(t, "docs/project/scale.md"), "<!-- scale "); n != len(tables) {
		t.Errorf("docs/project/scale.md has places for %d tables, the result has %d", n, len(tables))
	}
}
