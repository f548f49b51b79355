// Package messages is the analyzer that reads what users read: the constant texts of log lines, errors and flag usages in code that is
// no test. Each report begins with the name of its rule, by which hack/ceilings counts it.
package messages

import (
	"go/ast"
	"go/constant"
	"go/types"
	"regexp"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/types/typeutil"
)

// Analyzer reports words of the former dialect, texts that begin with a capital letter, and texts that end with a period or a line break.
var Analyzer = &analysis.Analyzer{Name: "messages", Doc: "report messages that do not follow the rules of style", Run: run}

// texts names the parameter that is the text, by the function's package and, for fmt, the function.
var texts = map[string]string{"log/slog": "msg", "errors": "text", "fmt.Errorf": "format", "flag": "usage"}

var (
	// The words of hack/vale/Plain.
	dialect = regexp.MustCompile(`(?i)\b(told|tells|said|says|nobody|somebody|anybody|whoever|beside|anew|questions?|ask(s|ed|ing|ers?)?|` +
		`lent|lends?|lending|loans?|borrower|overheard|given back|gives? back|taken? back|left alone|passed by|mend(s|ed|ing)?|tend(s|ed)?)\b`)
	section = regexp.MustCompile(`(?i)question section`)
	// A sentence's first word. Names and abbreviations have another capital or a digit, or are in names.
	sentence = regexp.MustCompile(`^[A-Z][a-z]*('t)?([ ,:;]|$)`)
	names    = regexp.MustCompile(`^(Corefile|Service|Services|Node|Pod|Secret|Cilium|Calico|Kubernetes|Linux|Debian|Prometheus|Go)\b`)
)

func run(pass *analysis.Pass) (any, error) {
	for _, file := range pass.Files {
		if strings.HasSuffix(pass.Fset.Position(file.Pos()).Filename, "_test.go") {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				check(pass, call)
			}
			return true
		})
	}
	return nil, nil
}

func check(pass *analysis.Pass, call *ast.CallExpr) {
	f, ok := typeutil.Callee(pass.TypesInfo, call).(*types.Func)
	if !ok || f.Pkg() == nil {
		return
	}
	name, ok := texts[f.Pkg().Path()]
	if !ok {
		name = texts[f.FullName()]
	}
	parameters := f.Signature().Params()
	for i := range min(parameters.Len(), len(call.Args)) {
		value := pass.TypesInfo.Types[call.Args[i]].Value
		if name == "" || parameters.At(i).Name() != name || value == nil || value.Kind() != constant.String {
			continue
		}
		text := constant.StringVal(value)
		if word := dialect.FindString(section.ReplaceAllString(text, "")); word != "" {
			pass.Reportf(call.Args[i].Pos(), "Message.words: %q is not a word for users: %q", word, text)
		}
		if sentence.MatchString(text) && !names.MatchString(text) {
			pass.Reportf(call.Args[i].Pos(), "Message.capital: begin with a lower-case letter: %q", text)
		}
		if strings.HasSuffix(text, ".") || strings.HasSuffix(text, "\n") {
			pass.Reportf(call.Args[i].Pos(), "Message.end: no period or line break at the end: %q", text)
		}
	}
}
