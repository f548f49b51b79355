// Package mutants changes the product one expression or statement at a time, and runs the tests to see whether they fail (`make mutants`).
//
// It consists of tests alone: no program needs it. A mutant is compiled through `go test -overlay`, so no file of the tree changes.
package mutants

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"regexp"
	"strings"
)

// A mutant is one change, and what became of it. File, Func, Kind, Old, New and Nth find it again in another commit.
type mutant struct {
	File, Func, Kind, Old, New string
	Nth                        int // among the same changes of one function
	Line                       int
	Result                     string // killed, timeout, survived, or why it does not count: invalid (does not compile), gone
	Tests                      string // the tests that failed

	from, to int // the bytes of the file that New replaces
}

func (m mutant) key() string {
	return fmt.Sprintf("%s %s %s %q %q %d", m.File, m.Func, m.Kind, m.Old, m.New, m.Nth)
}

func (m mutant) apply(src []byte) string {
	return string(src[:m.from]) + m.New + strings.Repeat("\n", strings.Count(m.Old, "\n")) + string(src[m.to:])
}

var swaps = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LAND: token.LOR, token.LOR: token.LAND, token.ADD: token.SUB, token.SUB: token.ADD,
}

// visitor collects the mutants of one file.
type visitor struct {
	name    string
	src     []byte
	fset    *token.FileSet
	fn      string
	types   []*ast.FuncType // of the functions around the node
	nth     map[string]int
	mutants []mutant
}

// sites returns all mutants of a file, in the order of the source.
func sites(name string, src []byte) ([]mutant, error) {
	v := &visitor{name: name, src: src, fset: token.NewFileSet(), nth: map[string]int{}}
	file, err := parser.ParseFile(v.fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(file) {
		return nil, err
	}
	for _, d := range file.Decls {
		v.fn = ""
		if f, ok := d.(*ast.FuncDecl); ok {
			v.fn = f.Name.Name
			if f.Recv != nil {
				v.fn = strings.TrimPrefix(v.text(f.Recv.List[0].Type), "*") + "." + v.fn
			}
		}
		ast.Inspect(d, v.visit)
	}
	return v.mutants, nil
}

// draw puts the mutants into the order of a seed.
func draw(all []mutant, seed uint64) []mutant {
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

func (v *visitor) offset(p token.Pos) int { return v.fset.Position(p).Offset }

func (v *visitor) text(n ast.Node) string { return string(v.src[v.offset(n.Pos()):v.offset(n.End())]) }

func (v *visitor) add(kind string, n ast.Node, text string) {
	v.replace(kind, n.Pos(), n.End(), text)
}

func (v *visitor) replace(kind string, from, to token.Pos, text string) {
	m := mutant{File: v.name, Func: v.fn, Kind: kind, New: text, Line: v.fset.Position(from).Line, from: v.offset(from), to: v.offset(to)}
	m.Old = string(v.src[m.from:m.to])
	k := m.key()
	m.Nth = v.nth[k]
	v.nth[k]++
	v.mutants = append(v.mutants, m)
}

var (
	logs     = regexp.MustCompile(`(?i)log\w*(\(\))?\.(Debug|Info|Warn|Error|Log)`)
	durable  = regexp.MustCompile(`\btime\.\w`)
	capacity = regexp.MustCompile(`^make\((\[\]|map)`) // only speed depends on it, or it does not compile
)

func (v *visitor) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.FuncDecl:
		v.types = []*ast.FuncType{n.Type}
	case *ast.FuncLit:
		v.types = append(v.types, n.Type)
		ast.Inspect(n.Body, v.visit)
		v.types = v.types[:len(v.types)-1]
		return false
	case *ast.CallExpr:
		return !logs.MatchString(v.text(n.Fun)) && !capacity.MatchString(v.text(n))
	case *ast.ImportSpec, *ast.ArrayType:
		return false
	case *ast.IfStmt:
		v.negate(n.Cond)
	case *ast.ForStmt:
		if n.Cond != nil {
			v.negate(n.Cond)
		}
	case *ast.BinaryExpr:
		if to, ok := swaps[n.Op]; ok && (to != token.SUB || !strings.ContainsAny(v.text(n), "\"`")) {
			v.replace("operator", n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), to.String())
		}
		return !durable.MatchString(v.text(n)) || !arithmetic(n.Op)
	case *ast.BasicLit:
		if n.Kind == token.INT {
			v.add("constant", n, "("+n.Value+" + 1)")
			v.add("constant", n, "("+n.Value+" - 1)")
		}
	case *ast.BlockStmt:
		v.remove(n.List)
	case *ast.CaseClause:
		v.remove(n.Body)
	case *ast.CommClause:
		v.remove(n.Body)
	case *ast.ReturnStmt:
		v.zero(n)
	}
	return true
}

func arithmetic(op token.Token) bool { return op >= token.ADD && op <= token.REM }

// negate skips == and !=: "operator" exchanges them.
func (v *visitor) negate(cond ast.Expr) {
	if b, ok := cond.(*ast.BinaryExpr); !ok || b.Op != token.EQL && b.Op != token.NEQ {
		v.add("negate", cond, "!("+v.text(cond)+")")
	}
}

// remove takes statements out of a block, for example calls, assignments to what exists, defer, and jumps.
func (v *visitor) remove(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt:
			if call, ok := s.X.(*ast.CallExpr); !ok || logs.MatchString(v.text(call.Fun)) || v.text(call.Fun) == "panic" {
				continue
			}
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE {
				continue
			}
		case *ast.ReturnStmt:
			if len(s.Results) > 0 {
				continue
			}
		case *ast.IncDecStmt, *ast.DeferStmt, *ast.BranchStmt, *ast.SendStmt:
		default:
			continue
		}
		v.add("remove", s, "")
	}
}

// zero returns the zero value in place of each result, and true in place of false.
func (v *visitor) zero(s *ast.ReturnStmt) {
	results := v.types[len(v.types)-1].Results
	if results == nil || len(s.Results) != results.NumFields() {
		return
	}
	var types []ast.Expr
	for _, f := range results.List {
		for range max(1, len(f.Names)) {
			types = append(types, f.Type)
		}
	}
	for i, r := range s.Results {
		text, zero := v.text(r), v.zeroOf(types[i])
		if text == "false" && zero == text {
			zero = "true"
		}
		if text != zero && text != "nil" && text != "0" && !strings.HasSuffix(text, "{}") {
			v.add("return", r, zero)
		}
	}
}

var integer = regexp.MustCompile(`^(u?int(8|16|32|64)?|byte|float64)$`)

func (v *visitor) zeroOf(t ast.Expr) string {
	text := v.text(t)
	switch t.(type) {
	case *ast.StarExpr, *ast.MapType, *ast.FuncType, *ast.ChanType, *ast.InterfaceType:
		return "nil"
	case *ast.ArrayType:
		if strings.HasPrefix(text, "[]") {
			return "nil"
		}
	}
	switch {
	case text == "error" || text == "any":
		return "nil"
	case text == "bool":
		return "false"
	case text == "string":
		return `""`
	case integer.MatchString(text):
		return "0"
	}
	return "*new(" + text + ")"
}
