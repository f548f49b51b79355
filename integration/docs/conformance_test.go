package docs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/integration/conformance"
)

// The table of Kubernetes' own tests is what the committed result draws, has each column, and the same tests pass in all of them.
func TestConformance(t *testing.T) {
	const name = "docs/conformance.md"
	result, err := conformance.Parse([]byte(read(t, "integration/conformance/result.json")))
	if err != nil {
		t.Fatal(err)
	}
	page := read(t, name)
	drawn, err := result.Page(page)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(filepath.Join(root, name), []byte(drawn), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if d := cmp.Diff(drawn, page); d != "" {
		t.Errorf("%s is not what the result draws: run make conformance, or this test with -update (-want +got):\n%s", name, d)
	}
	if n := len(conformance.Proxies()) * len(conformance.Everything()); len(result.Columns) != n {
		t.Errorf("%d columns, want %d", len(result.Columns), n)
	}
	for _, fault := range result.Faults() {
		t.Error(fault)
	}
}
