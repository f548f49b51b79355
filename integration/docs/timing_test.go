package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/neardns/neardns/integration/cited"
)

var (
	proofs  = regexp.MustCompile(`(?s)\bState: (.+)\bBound: (.+)$`)
	proof   = regexp.MustCompile(`\b(Test[A-Z]\w*)(?: \(([a-z][\w-]*(?:/[\w-]+)+)\))?`)
	noBound = regexp.MustCompile(`^none, \S+ \S+ \S+`)
)

// The comment of each timing test names the tests that show without a measurement what it measures: "State:" those of the states, "Bound:"
// those of the promised time on a virtual clock, or "none, …" and why. They are of its own folder unless one follows in brackets, and run
// without build tags.
func TestProofsOfTimingTests(t *testing.T) {
	found := 0
	for _, name := range files(t, "_timing_test.go") {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "TestTiming") {
				continue
			}
			found++
			parts := proofs.FindStringSubmatch(strings.Join(strings.Fields(f.Doc.Text()), " "))
			if parts == nil {
				t.Errorf("%s: the comment of %s has no State: and Bound: in this order", name, f.Name.Name)
				continue
			}
			for i, text := range parts[1:] {
				tests := proof.FindAllStringSubmatch(text, -1)
				if len(tests) == 0 && (i == 0 || !noBound.MatchString(text)) {
					t.Errorf("%s: %s names no test in %q", name, f.Name.Name, text)
				}
				for _, m := range tests {
					test := cited.Test{Folder: m[2], Name: m[1]}
					if m[2] == "" {
						test.Folder = filepath.Dir(name)
					}
					if source, err := cited.Find(root, test); err != nil || !source.Built(nil) {
						t.Errorf("%s: %s names %s, in %q of another tier: %v", name, f.Name.Name, test, source.File, err)
					}
				}
			}
		}
	}
	if found < 50 {
		t.Errorf("%d timing tests found, want at least 50", found)
	}
}
