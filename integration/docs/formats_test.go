package docs

import (
	"path"
	"regexp"
	"testing"
)

// TestFormats holds the numbers of formats in docs/reference/node-state.md to the sources that they name.
func TestFormats(t *testing.T) {
	rows := regexp.MustCompile(`(?m)^\| [^|]+ \| (\d+), in \[[^\]]+\]\(([^)]+)\) \|`).FindAllStringSubmatch(read(t, "docs/reference/node-state.md"), -1)
	if len(rows) != 3 {
		t.Fatalf("%d rows have a format's number, want 3", len(rows))
	}
	constant := regexp.MustCompile(`(?m)^(?:const\s+|\s+)(?:version|snapshotVersion|Version)\s+= (\d+)$`)
	for _, row := range rows {
		source := path.Join("docs/reference", row[2])
		if found := constant.FindAllStringSubmatch(read(t, source), -1); len(found) != 1 || found[0][1] != row[1] {
			t.Errorf("docs/reference/node-state.md has format %s of %s, which has %v", row[1], source, found)
		}
	}
}
