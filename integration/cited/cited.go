// Package cited finds the tests that a page names as evidence, each by its folder and its whole name: `pkg/steer/nft.TestTrace`.
//
// A test that it returns is declared in a test file of that folder, by its whole name and with a test's parameter.
//
// On failure: a test that does not exist, or a folder that cannot be parsed, is an error that names the test.
package cited

import (
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Test is a test's name with the folder of its package, relative to the repository.
type Test struct{ Folder, Name string }

func (t Test) String() string { return t.Folder + "." + t.Name }

var inCode = regexp.MustCompile("`([a-z][A-Za-z0-9_./-]*)\\.((?:Test|Fuzz)[A-Z]\\w*)`")

// InText returns the tests that a text names, in its order, each once.
func InText(text string) (out []Test) {
	seen := map[Test]bool{}
	for _, m := range inCode.FindAllStringSubmatch(text, -1) {
		if t := (Test{m[1], m[2]}); !seen[t] {
			seen[t] = true
			out = append(out, t)
		}
	}
	return out
}

// Source is where a test is declared.
type Source struct {
	File  string          // relative to its folder
	Build constraint.Expr // of the file's //go:build line; nil: it has none
}

// Built reports whether the file is compiled with these build tags on Linux.
func (s Source) Built(tags []string) bool {
	return s.Build == nil || s.Build.Eval(func(tag string) bool {
		for _, t := range tags {
			if t == tag {
				return true
			}
		}
		return tag == "linux" || strings.HasPrefix(tag, "go1.")
	})
}

// Find looks for the test's declaration in the repository at root.
func Find(root string, t Test) (Source, error) {
	folder := filepath.Join(root, t.Folder)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return Source{}, fmt.Errorf("%s: %w", t, err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(folder, e.Name()), nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			return Source{}, fmt.Errorf("%s: %w", t, err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == t.Name && isTest(f) {
				build, err := constraintOf(file)
				if err != nil {
					return Source{}, fmt.Errorf("%s: %s: %w", t, e.Name(), err)
				}
				return Source{File: e.Name(), Build: build}, nil
			}
		}
	}
	return Source{}, fmt.Errorf("%s: no test file of %s declares it", t, t.Folder)
}

// isTest reports whether the go command runs the function: one parameter, *testing.T or *testing.F, as its name begins.
func isTest(f *ast.FuncDecl) bool {
	if f.Recv != nil || f.Type.Results != nil || len(f.Type.Params.List) != 1 || len(f.Type.Params.List[0].Names) > 1 {
		return false
	}
	pointer, ok := f.Type.Params.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	of, ok := pointer.X.(*ast.SelectorExpr)
	return ok && of.Sel.Name == f.Name.Name[:1] // TestX(*testing.T), FuzzX(*testing.F)
}

func constraintOf(file *ast.File) (constraint.Expr, error) {
	for _, group := range file.Comments {
		if group.Pos() > file.Package {
			break
		}
		for _, c := range group.List {
			if constraint.IsGoBuild(c.Text) {
				return constraint.Parse(c.Text)
			}
		}
	}
	return nil, nil
}
