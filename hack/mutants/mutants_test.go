package mutants

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"reflect"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

const fixture = `package a

var time struct{ Second int }

var wait = 5 * time.Second

const size = 3

type logger struct{}

func (logger) Info(string, ...int) {}

type server struct {
	log logger
	n   int
}

func (s *server) f(x int, names []string) (text string, err error) {
	s.log.Info("called", 7)
	if x < size && len(names) > 0 {
		s.n = x
		s.n++
	}
	for _, n := range names {
		if n == "" {
			continue
		}
		func() bool {
			return false
		}()
	}
	s.f(1,
		nil)
	return names[x], err
}
`

// TestSites holds the tool to its mutants, and compiles each of them.
func TestSites(t *testing.T) {
	all, err := sites("a.go", []byte(fixture))
	testutil.Must(t, err)
	var got []string
	for _, m := range all {
		got = append(got, strings.Join([]string{m.Func, m.Kind, m.Old, m.New}, "|"))
		changed := m.apply([]byte(fixture))
		if a, b := strings.Count(changed, "\n"), strings.Count(fixture, "\n"); a != b {
			t.Errorf("%s: %d lines, want %d: positions in messages move", m.key(), a, b)
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, "a.go", changed, 0)
		if err != nil {
			t.Errorf("%s: %v", m.key(), err)
			continue
		}
		_, err = new(types.Config).Check("a", fset, []*ast.File{file}, nil)
		testutil.Check(t, err, m.key())
	}
	want := []string{
		"|constant|3|(3 + 1)", "|constant|3|(3 - 1)",
		"server.f|remove|s.f(1,\n\t\tnil)|",
		"server.f|negate|x < size && len(names) > 0|!(x < size && len(names) > 0)", "server.f|operator|&&|||", "server.f|operator|<|<=",
		"server.f|operator|>|>=", "server.f|constant|0|(0 + 1)", "server.f|constant|0|(0 - 1)",
		"server.f|remove|s.n = x|", "server.f|remove|s.n++|",
		"server.f|remove|func() bool {\n\t\t\treturn false\n\t\t}()|", "server.f|operator|==|!=", "server.f|remove|continue|",
		"server.f|return|false|true",
		"server.f|constant|1|(1 + 1)", "server.f|constant|1|(1 - 1)",
		`server.f|return|names[x]|""`, "server.f|return|err|nil",
	}
	testutil.Equal(t, "mutants", want, got)
}

func TestDraw(t *testing.T) {
	drawn := func(seed uint64) []mutant {
		all, err := sites("a.go", []byte(fixture))
		testutil.Must(t, err)
		keys := map[string]bool{}
		for _, m := range all {
			if keys[m.key()] {
				t.Errorf("%s: two mutants", m.key())
			}
			keys[m.key()] = true
		}
		return draw(all, seed)
	}
	if a, b := drawn(1), drawn(1); !reflect.DeepEqual(a, b) {
		t.Error("one seed drew two lists")
	}
	if a, b := drawn(1), drawn(2); reflect.DeepEqual(a, b) {
		t.Error("two seeds drew one list")
	}
}
