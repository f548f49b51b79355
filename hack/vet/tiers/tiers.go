// Package tiers is the analyzer that holds each test to the rules of its tier.
package tiers

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/tools/go/analysis"
)

// Analyzer reports tests that break the rules of their tier.
var Analyzer = &analysis.Analyzer{
	Name:      "tiers",
	Doc:       "report unit tests that wait on the real clock, kernel tests that measure time, and misnamed timing tests",
	Run:       run,
	FactTypes: []analysis.Fact{new(reaches)},
}

// reaches is what a function of test code gets to by what it refers to. Each field has the way there, for the message; "" is no
// way. What is referred to inside of the function given to synctest.Test counts for Root alone: time is virtual in there.
type reaches struct {
	Root  string // testutil.RequireRoot
	Clock string // the real clock
	Limit string // a time limit or a measured duration: the part of Clock that a kernel test must not use
	Waits string // a helper of testutil that waits on the real clock, with its own limit
}

func (*reaches) AFact() {}

// clock lists the functions that read the real clock, wait on it or measure by it. A ticker paces a load and bounds nothing.
var clock = map[string]reaches{
	"time.Now":   {Clock: read},
	"time.Sleep": {Clock: read, Limit: bound}, "time.After": {Clock: read, Limit: bound}, "time.AfterFunc": {Clock: read, Limit: bound},
	"time.Tick": {Clock: read, Limit: bound}, "time.NewTimer": {Clock: read, Limit: bound}, "time.NewTicker": {Clock: read},
	"time.Since": {Clock: read, Limit: bound}, "time.Until": {Clock: read, Limit: bound}, "(time.Time).Sub": {Limit: bound},
	"context.WithTimeout": {Clock: read, Limit: bound}, "context.WithTimeoutCause": {Clock: read, Limit: bound},
	"context.WithDeadline": {Clock: read, Limit: bound}, "context.WithDeadlineCause": {Clock: read, Limit: bound},
	tight.Name(): {Clock: read, Limit: bound}, "github.com/neardns/neardns/pkg/tick.Pause": {Clock: read},
	// It tries for half a second. testutil.NoLeaks repeats it until the package's time is up, Eventually within its own limit.
	leaks + "Find": {Clock: read}, leaks + "VerifyNone": {Clock: read, Limit: bound}, leaks + "VerifyTestMain": {Clock: read, Limit: bound},
}

// tight stands for a deadline that an answer which must come may miss, see isTight.
var tight = types.NewFunc(token.NoPos, nil, "a tight deadline", types.NewSignatureType(nil, nil, nil, nil, nil, false))

// clients are the packages with a type that has a field Timeout, for an answer or a connection.
var clients = map[string]bool{testutilPath: true, "github.com/miekg/dns": true, "net": true, "net/http": true}

// lanes are the tests of real clusters. They run alone, with limits of their own, and print how long something took. They do not judge it.
var lanes = map[string]bool{integrationPath + "controlplane": true, integrationPath + "cluster/endtoend": true}

const (
	read  = "the clock"
	bound = "a time limit or measurement"
	root  = "root"
)

// roots lists the functions that make a test one of the kernel tier.
var roots = map[string]bool{testutilPath + ".RequireRoot": true, testutilPath + ".NewNS": true, testutilPath + ".StartHere": true}

const (
	testutilPath = "github.com/neardns/neardns/pkg/testutil"
	leaks        = "go.uber.org/goleak."

	integrationPath = "github.com/neardns/neardns/integration/"
	timingName      = "TestTiming"
	timingFile      = "_timing_test.go"
)

type pass struct {
	*analysis.Pass

	own map[types.Object]*node
}

// node is a function, or a package's variable, of the package at hand.
type node struct {
	reaches

	test   bool
	main   bool // TestMain
	helper bool // of testutil, and no test of it
	pos    token.Pos
	refs   []ref
}

type ref struct {
	to      types.Object
	virtual bool // referred to inside of a function given to synctest.Test
}

func run(p *analysis.Pass) (any, error) {
	ps := &pass{Pass: p, own: map[types.Object]*node{}}
	for _, file := range p.Files {
		name := filepath.Base(p.Fset.File(file.Package).Name())
		if !strings.HasSuffix(name, "_test.go") && !isTestCode(p.Pkg.Path()) {
			continue
		}
		ps.checkNames(file, name)
		if lanes[p.Pkg.Path()] {
			ps.checkLane(file)
			continue
		}
		if !strings.HasSuffix(name, timingFile) {
			ps.collect(file, strings.HasSuffix(name, "_test.go"))
		}
	}
	ps.settle()
	ps.report()
	return nil, nil
}

// isTestCode holds for packages whose files are test code although their names do not end in _test.go.
func isTestCode(path string) bool {
	return strings.HasPrefix(path, testutilPath) || strings.Contains(path, "/integration/")
}

// checkNames reports a file whose name does not fit its build tag, and tests whose names do not.
func (p *pass) checkNames(file *ast.File, name string) {
	tagged := slices.ContainsFunc(file.Comments, func(c *ast.CommentGroup) bool {
		return c.Pos() < file.Package && slices.ContainsFunc(c.List, func(l *ast.Comment) bool { return l.Text == "//go:build timing" })
	})
	if tagged != strings.HasSuffix(name, timingFile) {
		p.Reportf(file.Package, "a file has the build tag timing if and only if its name ends in %s", timingFile)
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && isTest(f) && strings.HasPrefix(f.Name.Name, timingName) != tagged {
			p.Reportf(f.Pos(), "%s: a test of the timing tier is called %s…, and no other is", f.Name.Name, timingName)
		}
	}
}

// checkLane reports durations that a test of a lane compares.
func (p *pass) checkLane(file *ast.File) {
	ast.Inspect(file, func(n ast.Node) bool {
		c, ok := n.(*ast.BinaryExpr)
		if !ok || !slices.Contains([]token.Token{token.LSS, token.GTR, token.LEQ, token.GEQ}, c.Op) {
			return true
		}
		if of := p.TypesInfo.TypeOf(c.X); of != nil && of.String() == "time.Duration" {
			p.Reportf(c.OpPos, "a test of a real cluster judges a duration: print it, and leave its bound to a unit test")
		}
		return true
	})
}

func isTest(f *ast.FuncDecl) bool {
	return f.Recv == nil && f.Name.Name != "TestMain" && (strings.HasPrefix(f.Name.Name, "Test") || strings.HasPrefix(f.Name.Name, "Fuzz"))
}

func (p *pass) collect(file *ast.File, tests bool) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if o := p.TypesInfo.Defs[d.Name]; o != nil && d.Body != nil {
				n := &node{test: tests && isTest(d), main: tests && d.Name.Name == "TestMain", helper: p.helpers(tests),
					pos: d.Name.Pos(), refs: p.refs(d.Body)}
				if n.main { // the test binary may be one of the programs: what that calls is no test's
					n.refs = slices.DeleteFunc(n.refs, func(r ref) bool {
						f, ok := r.to.(*types.Func)
						return !ok || clock[f.FullName()] == (reaches{})
					})
				}
				p.own[o] = n
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				v, ok := s.(*ast.ValueSpec)
				if !ok {
					continue
				}
				var refs []ref
				for _, value := range v.Values {
					refs = append(refs, p.refs(value)...)
				}
				for _, name := range v.Names {
					if o := p.TypesInfo.Defs[name]; o != nil && d.Tok == token.VAR {
						p.own[o] = &node{helper: p.helpers(tests), pos: name.Pos(), refs: refs}
					}
				}
			}
		}
	}
}

// helpers holds for files of testutil that have no tests in them.
func (p *pass) helpers(tests bool) bool {
	return !tests && strings.HasPrefix(p.Pkg.Path(), testutilPath)
}

// refs lists the functions and variables that a body refers to.
func (p *pass) refs(body ast.Node) []ref {
	var out []ref
	var walk func(n ast.Node, virtual bool)
	walk = func(n ast.Node, virtual bool) {
		ast.Inspect(n, func(n ast.Node) bool {
			if p.isTight(p.deadline(n)) {
				out = append(out, ref{tight, virtual})
			}
			switch n := n.(type) {
			case *ast.CallExpr:
				if f := p.callee(n); f != nil && f.FullName() == "testing/synctest.Test" {
					for _, arg := range n.Args {
						walk(arg, true)
					}
					return false
				}
				if p.ownLimit(n) {
					for _, arg := range n.Args[:1] {
						walk(arg, virtual)
					}
					return false
				}
			case *ast.Ident:
				switch o := p.TypesInfo.Uses[n].(type) {
				case *types.Func:
					out = append(out, ref{o.Origin(), virtual})
				case *types.Var:
					if o.Parent() == p.Pkg.Scope() {
						out = append(out, ref{o, virtual})
					}
				}
			}
			return true
		})
	}
	walk(body, false)
	return out
}

// ownLimit reports whether call is context.WithTimeout with one of the two limits that kernel tests have: testutil.Patience() for
// what must come, and testutil.Silence for an answer that must not.
func (p *pass) ownLimit(call *ast.CallExpr) bool {
	f := p.callee(call)
	if f == nil || f.FullName() != "context.WithTimeout" || len(call.Args) != 2 {
		return false
	}
	switch limit := ast.Unparen(call.Args[1]).(type) {
	case *ast.CallExpr:
		g := p.callee(limit)
		return g != nil && g.FullName() == testutilPath+".Patience"
	case *ast.SelectorExpr:
		c := p.TypesInfo.Uses[limit.Sel]
		return c != nil && c.Pkg() != nil && c.Pkg().Path() == testutilPath && c.Name() == "Silence"
	}
	return false
}

// deadline returns the time that a call or a field of a composite literal leaves to a connection or a query, or nil.
func (p *pass) deadline(n ast.Node) ast.Expr {
	switch n := n.(type) {
	case *ast.KeyValueExpr:
		if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Timeout" {
			if field := p.TypesInfo.Uses[key]; field != nil && field.Pkg() != nil && clients[field.Pkg().Path()] {
				return n.Value
			}
		}
	case *ast.CallExpr:
		f := p.callee(n)
		if f == nil || len(n.Args) == 0 {
			return nil
		}
		if f.FullName() == "net.DialTimeout" && len(n.Args) == 3 {
			return n.Args[2]
		}
		sets := strings.HasPrefix(f.Name(), "Set") && strings.HasSuffix(f.Name(), "Deadline")
		if add, ok := n.Args[0].(*ast.CallExpr); ok && sets && len(add.Args) == 1 {
			return add.Args[0] // of time.Now().Add
		}
	}
	return nil
}

// isTight reports whether a time is a constant from a second to an hour, which is longer than the tests of a package take, and none of
// testutil's. On a busy machine an answer that must come may take longer. A shorter time is for queries that are repeated, or that are
// not answered.
func (p *pass) isTight(limit ast.Expr) bool {
	if limit == nil {
		return false
	}
	name, _ := ast.Unparen(limit).(*ast.Ident)
	if s, ok := ast.Unparen(limit).(*ast.SelectorExpr); ok {
		name = s.Sel
	}
	if c := p.TypesInfo.Uses[name]; c != nil && c.Pkg() != nil && c.Pkg().Path() == testutilPath {
		return false
	}
	v := p.TypesInfo.Types[limit].Value
	if v == nil {
		return false
	}
	d, _ := constant.Int64Val(constant.ToInt(v))
	return d >= int64(time.Second) && d < int64(time.Hour)
}

func (p *pass) callee(call *ast.CallExpr) *types.Func {
	var name *ast.Ident
	switch f := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		name = f
	case *ast.SelectorExpr:
		name = f.Sel
	default:
		return nil
	}
	f, _ := p.TypesInfo.Uses[name].(*types.Func)
	return f
}

// settle follows the references until nothing new is reached, and exports what each function reaches.
func (p *pass) settle() {
	for changed := true; changed; {
		changed = false
		for _, n := range p.own {
			for _, r := range n.refs {
				if n.add(r.to.Name(), p.reached(r.to, n.helper), r.virtual) {
					changed = true
				}
			}
		}
	}
	for o, n := range p.own {
		if _, ok := o.(*types.Func); ok && n.reaches != (reaches{}) {
			p.ExportObjectFact(o, &n.reaches)
		}
	}
}

// reached is what an object reaches, as its user sees it: the waits of testutil have one limit, which judges nothing.
func (p *pass) reached(o types.Object, fromHelper bool) reaches {
	f, _ := o.(*types.Func)
	name := ""
	if f != nil {
		name = f.FullName()
	}
	if r, ok := clock[name]; ok {
		return r
	}
	var r reaches
	helper := false
	if n := p.own[o]; n != nil {
		r, helper = n.reaches, n.helper
	} else if f != nil && f.Pkg() != nil {
		p.ImportObjectFact(f, &r)
		helper = strings.HasPrefix(f.Pkg().Path(), testutilPath)
	}
	if helper && !fromHelper {
		r = reaches{Root: r.Root, Waits: r.Clock}
	}
	if roots[name] {
		r.Root = root
	}
	return r
}

// add takes over what a reference reaches, and reports whether that was news.
func (n *node) add(name string, r reaches, virtual bool) bool {
	before := n.reaches
	take := func(to *string, from string) {
		if *to == "" && from != "" {
			*to = name
			if from != read && from != bound && from != root && strings.Count(from, " → ") < 4 {
				*to = name + " → " + from
			}
		}
	}
	take(&n.Root, r.Root)
	if !virtual {
		take(&n.Clock, r.Clock)
		take(&n.Limit, r.Limit)
		take(&n.Waits, r.Waits)
	}
	return n.reaches != before
}

func (p *pass) report() {
	for o, n := range p.own {
		if !n.test && !n.main {
			continue
		}
		name := fmt.Sprintf("%s %s", strings.TrimSuffix(p.Pkg.Path(), "_test"), o.Name())
		switch {
		case n.main && n.Limit == "":
		case n.main:
			p.Reportf(n.pos, "%s has a time of its own by %s: use testutil.NoLeaks", name, n.Limit)
		case n.Root == "" && n.Clock != "":
			p.Reportf(n.pos, "unit test %s reads the real clock by %s: use testing/synctest", name, n.Clock)
		case n.Root == "" && n.Waits != "":
			p.Reportf(n.pos, "unit test %s waits on the real clock by %s: use testing/synctest, or require root", name, n.Waits)
		case n.Root != "" && n.Limit != "":
			p.Reportf(n.pos, "kernel test %s has a time of its own by %s: use testutil.Eventually, Context, Receive or Patience", name, n.Limit)
		}
	}
}
