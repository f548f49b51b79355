package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/integration/compat"
	"github.com/neardns/neardns/pkg/testutil"
)

// The compatibility tables are what the committed results draw, and each result comes from a test that exists.
func TestCompatibilityTables(t *testing.T) {
	names, err := compat.Names()
	if err != nil || len(names) == 0 {
		t.Fatalf("no tables: %v", err)
	}
	for _, name := range names {
		table, err := compat.Load(name)
		testutil.Must(t, err)
		page := read(t, table.Page)
		results, err := compat.ReadResults(filepath.Join(root, "integration/compat/results"), name)
		testutil.Must(t, err)
		filled, err := compat.Fill(page, name, compat.Render(table, results))
		if err != nil {
			t.Errorf("%s: %v", table.Page, err)
			continue
		}
		if d := cmp.Diff(filled, page); d != "" {
			t.Errorf("%s: table %s is not what the results draw: run the tests, then make compat (-want +got):\n%s", table.Page, name, d)
		}
		for _, r := range results {
			for _, test := range r.Tests {
				folder, full, _ := strings.Cut(test, " ")
				top, _, _ := strings.Cut(full, "/")
				if !hasTest(t, folder, top) {
					t.Errorf("table %s: %q, %s: there is no test %s", name, r.Row, r.Column, test)
				}
			}
			if len(r.Tests) == 0 {
				t.Errorf("table %s: %q, %s: shown by no test", name, r.Row, r.Column)
			}
		}
	}
}

// hasTest reports whether a test of that name stands in a folder of the repository.
func hasTest(t *testing.T, folder, name string) bool {
	t.Helper()
	files, err := fs.Glob(os.DirFS(filepath.Join(root, folder)), "*_test.go")
	testutil.Must(t, err)
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, folder, file), nil, parser.SkipObjectResolution)
		testutil.Must(t, err)
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == name && strings.HasPrefix(name, "Test") {
				return true
			}
		}
	}
	return false
}
