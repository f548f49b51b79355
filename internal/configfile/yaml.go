// Package configfile parses configuration files in YAML into values that know their line in the file, and parses texts into typed values
// such as addresses.
//
// It guarantees that each error names the file, line and field, where they are known, and a remedy. The caller defines which keys exist.
//
// On failure it returns an error and no value. If the YAML parser panics, that is an error too.
package configfile

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/neardns/neardns/pkg/strict"
)

// Parse parses the single YAML document in data. A file without a document gives a value of no kind.
func Parse(file string, data []byte) (v strict.Value, err error) {
	// The YAML parser may panic on odd input. A program that only reloads its configuration must survive that.
	defer func() {
		if r := recover(); r != nil {
			err = &strict.Fault{Place: strict.Place{File: file}, Message: fmt.Sprintf("not readable as YAML (%v): write it anew from a sample", r)}
		}
	}()
	data = []byte(strings.TrimPrefix(string(data), "\ufeff"))
	f, err := parser.ParseBytes(data, 0)
	if err != nil {
		fault := &strict.Fault{Place: strict.Place{File: file}, Message: "not valid YAML: mend the line; indent with spaces, quote text " +
			"that holds : # { or ["}
		if e, ok := errors.AsType[yaml.Error](err); ok {
			fault.Message = "not valid YAML: " + e.GetMessage() + ": mend the line; indent with spaces, quote text that holds : # { or ["
			if t := e.GetToken(); t != nil && t.Position != nil {
				fault.Line, fault.Column = t.Position.Line, t.Position.Column
			}
		}
		return v, fault
	}
	var body ast.Node
	for _, doc := range f.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if body != nil {
			return v, &strict.Fault{Place: place(file, doc.Body), Message: "a second YAML document: keep one"}
		}
		body = doc.Body
	}
	if body == nil {
		return v, nil
	}
	return value(file, body), nil
}

// value converts a YAML node into a value with its position.
func value(file string, v ast.Node) strict.Value {
	at := place(file, v)
	scalar := func(kind strict.Kind, text string) strict.Value {
		return strict.Value{Place: at, Kind: kind, Text: text}
	}
	switch x := v.(type) {
	case nil, *ast.NullNode:
		return scalar(strict.Null, "null")
	case *ast.MappingNode:
		return object(file, at, x.Values)
	case *ast.MappingValueNode:
		return object(file, at, []*ast.MappingValueNode{x})
	case *ast.SequenceNode:
		items := make([]strict.Value, 0, len(x.Values))
		for _, e := range x.Values {
			items = append(items, value(file, e))
		}
		return strict.ListOf(at, items)
	case *ast.StringNode:
		return scalar(strict.String, x.Value)
	case *ast.LiteralNode:
		return scalar(strict.String, x.Value.Value)
	case *ast.BoolNode:
		return scalar(strict.Boolean, fmt.Sprint(x.Value))
	case *ast.IntegerNode:
		return scalar(strict.Number, fmt.Sprint(x.Value)) // the parser gives an int64 or uint64 for every notation
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return scalar(strict.Number, x.GetToken().Value)
	}
	return scalar(strict.Other, v.String())
}

// object converts a mapping, with its keys in the order of the file. The parser has refused duplicate keys already.
func object(file string, at strict.Place, values []*ast.MappingValueNode) strict.Value {
	members := make([]strict.Member, 0, len(values))
	for _, kv := range values {
		m := strict.Member{Name: place(file, kv.Key), Value: value(file, kv.Value)}
		if key, ok := kv.Key.(ast.Node).(*ast.StringNode); ok {
			m.Key = key.Value
		} else {
			m.Odd = strings.TrimSpace(kv.Key.String())
		}
		members = append(members, m)
	}
	return strict.ObjectOf(at, members)
}

// place returns the position of v in the file.
func place(file string, v ast.Node) strict.Place {
	if v == nil {
		return strict.Place{File: file}
	}
	// The parser gives a mapping the position of its first colon. A user expects the first key.
	switch m := v.(type) {
	case *ast.MappingNode:
		if !m.IsFlowStyle && len(m.Values) > 0 {
			v = m.Values[0].Key
		}
	case *ast.MappingValueNode:
		v = m.Key
	}
	t := v.GetToken()
	if t == nil || t.Position == nil {
		return strict.Place{File: file}
	}
	return strict.Place{File: file, Line: t.Position.Line, Column: t.Position.Column}
}
