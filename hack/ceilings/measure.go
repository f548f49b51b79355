package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"unicode/utf8"
)

const (
	longestLine     = 140
	longestFunction = 70 // lines between the braces
	widestStruct    = 20 // fields
)

var (
	product   = regexp.MustCompile(`^(agent|fleet|install|internal|plugins|pkg)/`)
	helper    = regexp.MustCompile(`^pkg/testutil/|_test\.go$`)
	directive = regexp.MustCompile(`^\s*// ?(\+kubebuilder|go):`) // one line by its syntax
	generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
)

// measure goes through all Go files that were written by hand.
//
// Size.node is the lines with code of the node's product, Size.all those of everything but tests, Ratio.tests those of tests for each
// hundred of the products. Line, Function and Struct count what is longer than its limit, in the products (.product) and in all other code
// (.tests).
func (c *counts) measure() error {
	names, err := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.go").Output()
	if err != nil {
		return err
	}
	tests, products := 0, 0
	for _, name := range strings.Fields(string(names)) {
		src, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) || strings.Contains(name, "/testdata/") || generated.Match(src) {
			continue
		} else if err != nil {
			return err
		}
		kind := ".tests"
		if product.MatchString(name) && !helper.MatchString(name) {
			kind = ".product"
		}
		n := codeLines(src)
		if kind == ".product" {
			products += n
			if !strings.HasPrefix(name, "fleet/") {
				c.sizes["Size.node"] += n
			}
		}
		if strings.HasSuffix(name, "_test.go") {
			tests += n
		} else {
			c.sizes["Size.all"] += n
		}
		if err := c.long(name, src, kind); err != nil {
			return err
		}
	}
	c.sizes["Ratio.tests"] = (100*tests + products - 1) / products
	return nil
}

// codeLines counts the lines that have a token other than a comment.
func codeLines(src []byte) (n int) {
	fset := token.NewFileSet()
	file := fset.AddFile("", -1, len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, 0)
	last := 0
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			return n
		}
		if tok == token.SEMICOLON && text == "\n" {
			continue // inserted by the scanner
		}
		first := max(file.Line(pos), last+1)
		last = max(last, file.Line(pos)+strings.Count(text, "\n")) // a raw string has several
		n += max(0, last-first+1)
	}
}

// long finds the lines, functions and structs that are longer than their limits.
func (c *counts) long(name string, src []byte, kind string) error {
	add := func(rule string, line, n int) {
		c.findings[rule+kind] = append(c.findings[rule+kind], fmt.Sprintf("%s:%d: %d", name, line, n))
	}
	number := 0
	for line := range bytes.Lines(src) {
		number++
		if n := utf8.RuneCount(bytes.TrimRight(line, "\n")); n > longestLine && !directive.Match(line) {
			add("Line", number, n)
		}
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Body == nil {
				break
			}
			begin := fset.Position(n.Body.Lbrace).Line
			if lines := fset.Position(n.Body.Rbrace).Line - begin - 1; lines > longestFunction {
				add("Function", begin, lines)
			}
		case *ast.StructType:
			if fields := n.Fields.NumFields(); fields > widestStruct {
				add("Struct", fset.Position(n.Pos()).Line, fields)
			}
		}
		return true
	})
	return nil
}
