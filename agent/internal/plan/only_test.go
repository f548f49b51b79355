package plan_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// TestOneDescription reads the agent's sources: the host's rules are described in this package alone. Two descriptions agree until
// one of them learns something new, and then the doctor calls a healthy node sick.
func TestOneDescription(t *testing.T) {
	here := 0
	err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			made, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			of, ok := made.Type.(*ast.SelectorExpr)
			if !ok || of.Sel.Name != "Host" {
				return true
			}
			if pkg, ok := of.X.(*ast.Ident); !ok || pkg.Name != "steer" {
				return true
			}
			if strings.HasPrefix(path, "../../internal/plan/") {
				here++
			} else {
				t.Errorf("%s makes a steer.Host: take it from the plan (Plan.Host)", set.Position(n.Pos()))
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if here != 1 {
		t.Errorf("%d descriptions in this package, want 1", here)
	}
}
