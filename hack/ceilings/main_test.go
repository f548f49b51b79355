package main

import (
	"io"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestCompare(t *testing.T) {
	for name, row := range map[string]struct {
		ceiling  string
		n        int
		kept     string
		problems string
	}{
		"as counted":  {"Plain.Says 100 C0 = 200\n", 100, "Plain.Says            100  C0 = 200\n", ""},
		"little less": {"Plain.Says 100\n", 96, "Plain.Says             96\n", ""},
		"much less":   {"Plain.Says 100\n", 94, "Plain.Says             94\n", "run `make ceilings`"},
		"none left":   {"Plain.Says 2\n", 0, "Plain.Says              0\n", "run `make ceilings`"},
		"more":        {"Plain.Says 100\n", 101, "Plain.Says            100\n", "101 is above the ceiling of 100"},
		"new rule":    {"# a comment\n", 1, "# a comment\n", "no ceiling"},
	} {
		c := counts{sizes: map[string]int{"Plain.Says": row.n}}
		kept, err := compare(io.Discard, row.ceiling, c, false)
		testutil.Equal(t, name, row.kept, kept)
		if (err == nil) != (row.problems == "") || err != nil && !strings.Contains(err.Error(), row.problems) {
			t.Errorf("%s: %v, want %q", name, err, row.problems)
		}
	}
}

func TestMeasure(t *testing.T) {
	src := "// Package a.\npackage a\n\n/* two\nlines */\n\nfunc f() string { // code\n\treturn `x\ny`\n}\n"
	if n := codeLines([]byte(src)); n != 5 {
		t.Errorf("%d lines of code, want 5", n)
	}
	long := "package a\n\nfunc f() {" + strings.Repeat("\n\tf()", 71) + "\n}\n\ntype s struct {" + strings.Repeat("\n\ta, b, c int", 7) + "\n}\n\n// " + strings.Repeat("x", 138) + "\n"
	long += "//go:generate " + strings.Repeat("x", 140) + "\n" // one line by its syntax
	c := counts{findings: map[string][]string{}}
	testutil.Must(t, c.long("a.go", []byte(long), ".product"))
	for rule, want := range map[string]string{"Function.product": "a.go:3: 71", "Struct.product": "a.go:77: 21", "Line.product": "a.go:87: 141"} {
		testutil.Equal(t, rule, want, strings.Join(c.findings[rule], ", "))
	}
}
