package plan_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// describes lists where the products may make a steer.Host, and how many: this package; the plugin, which has no NodeConfig and
// describes the switch by its own entry; and the record by which the installer's watch restores the switch.
var describes = map[string]int{"agent/internal/node/plan": 1, "plugins/neardns/plan.go": 1, "pkg/nodestate/hostrules.go": 1}

// TestOneDescription reads the products' sources: the host's rules are described in the plan alone. Two descriptions agree until one
// of them learns something new, and then the doctor calls a healthy node sick.
func TestOneDescription(t *testing.T) {
	made := map[string]int{}
	const root = "../../../../"
	for _, product := range []string{"agent", "internal", "install", "plugins", "pkg"} {
		err := filepath.WalkDir(root+product, func(path string, d fs.DirEntry, err error) error {
			name := strings.TrimPrefix(filepath.ToSlash(path), root)
			switch {
			case err != nil:
				return err
			case d.IsDir() && (name == "pkg/steer" || name == "pkg/testutil"): // the type's own package; nodes of tests
				return fs.SkipDir
			case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
				return nil
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if lit, ok := n.(*ast.CompositeLit); ok && isHost(lit.Type) {
					by := name
					if strings.HasPrefix(name, "agent/internal/node/plan/") {
						by = "agent/internal/node/plan"
					}
					if made[by]++; made[by] > describes[by] {
						t.Errorf("%s makes a steer.Host: take it from the plan (plan.Plan.Host)", set.Position(n.Pos()))
					}
				}
				return true
			})
			return nil
		})
		testutil.Must(t, err)
	}
	for by, want := range describes {
		testutil.Equal(t, by+" makes", want, made[by])
	}
}

func isHost(made ast.Expr) bool {
	of, ok := made.(*ast.SelectorExpr)
	if !ok || of.Sel.Name != "Host" {
		return false
	}
	pkg, ok := of.X.(*ast.Ident)
	return ok && pkg.Name == "steer"
}

// TestArrangementIsOneWord: code that opens, reconciles or inspects parts uses the plan's values. It neither reads the arrangement nor sets
// values that follow from it.
func TestArrangementIsOneWord(t *testing.T) {
	follows := []string{"Arrangement", "OwnLocals", "Ceded", "HealthPort", "Service", "Transparent", "Deaf", "Binds", "AskStub", "Foreign", "Temporary", "Waits"}
	for _, folder := range []string{"../../../*.go", "../../lifecycle/*.go", "../*.go", "../../inspect/*.go", "../../pods/podindex/*.go", "../prober/*.go"} {
		files, err := filepath.Glob(folder)
		if err != nil || len(files) == 0 {
			t.Fatalf("no sources in %s: %v", folder, err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			testutil.Must(t, err)
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.KeyValueExpr:
					if key, ok := n.Key.(*ast.Ident); ok && slices.Contains(follows, key.Name) {
						t.Errorf("%s sets %s: it follows from the plan's arrangement", set.Position(n.Pos()), key.Name)
					}
				case *ast.SelectorExpr:
					if n.Sel.Name == "Arrangement" {
						t.Errorf("%s asks for the arrangement: the plan says what follows from it", set.Position(n.Pos()))
					}
				}
				return true
			})
		}
	}
}
