package docs

import (
	"path/filepath"
	"testing"

	"github.com/neardns/neardns/integration/conformance"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

// The table of Kubernetes' own tests is what the committed result draws, has each column, and the same tests pass in all of them.
func TestConformance(t *testing.T) {
	const name = "docs/project/conformance.md"
	result, err := conformance.Parse([]byte(read(t, "integration/conformance/result.json")))
	testutil.Must(t, err)
	page := read(t, name)
	drawn, err := result.Page(page)
	testutil.Must(t, err)
	golden.File(t, filepath.Join(root, name), drawn)
	if n := len(conformance.Proxies()) * len(conformance.Everything()); len(result.Columns) != n {
		t.Errorf("%d columns, want %d", len(result.Columns), n)
	}
	for _, fault := range result.Faults() {
		t.Error(fault)
	}
}
