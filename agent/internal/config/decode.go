package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// The YAML is walked by hand, not decoded into a struct: only so can every fault be told at once and with the place and
// the name of the field, and only so are the few forms that we want the only ones that are taken.

// decoder walks one file and collects what is wrong with it.
type decoder struct {
	node   *Node
	file   string
	lookup func(string) (string, bool)
	faults []error
}

// decode takes over what the file says into n.
func (n *Node) decode(file string, data []byte, lookup func(string) (string, bool)) error {
	n.at[""] = position{file: file}
	body, err := parse(file, data)
	if err != nil {
		return err
	}
	d := &decoder{node: n, file: file, lookup: lookup}
	if body == nil {
		return &FaultError{File: file, Message: fmt.Sprintf("the file is empty: start it with apiVersion: %s and kind: %s", APIVersion, Kind)}
	}
	if body.Type() != ast.MappingType && body.Type() != ast.MappingValueType {
		d.fail(body, "", "the file is %s: start it with apiVersion: %s and kind: %s", kind(body), APIVersion, Kind)
		return errors.Join(d.faults...)
	}
	d.group("", body)
	// A file for something else would otherwise yield a list of unknown fields that hides what is really wrong.
	for _, want := range []struct{ key, value string }{{"apiVersion", APIVersion}, {"kind", Kind}} {
		if _, ok := n.at[want.key]; !ok {
			d.faults = append(d.faults, &FaultError{File: file, Field: want.key, Message: "missing: add the line " + want.key + ": " + want.value})
		}
	}
	if !slices.ContainsFunc(d.faults, func(err error) bool { return !isUnknown(err) }) {
		// A program that was rolled back meets the file of the newer one: what it does not know must not keep it from starting.
		n.unknown, d.faults = d.faults, nil
	}
	return errors.Join(d.faults...)
}

func isUnknown(err error) bool {
	fault, ok := errors.AsType[*FaultError](err)
	return ok && fault.unknown
}

// strange notes a key that is not known here: a slip, or one of a newer release.
func (d *decoder) strange(p pair, prefix, remedy string) {
	at := place(d.file, p.name)
	d.faults = append(d.faults, &FaultError{File: d.file, Line: at.line, Column: at.column, unknown: true,
		Message: fmt.Sprintf("unknown field %q: %s", join(prefix, p.key), remedy)})
}

// parse reads the one YAML document in data. No document gives nil.
func parse(file string, data []byte) (_ ast.Node, err error) {
	// A parser that panics on odd input must not take down an agent that is only asked to reload.
	defer func() {
		if r := recover(); r != nil {
			err = &FaultError{File: file, Message: fmt.Sprintf("not readable as YAML (%v): write it anew from a sample", r)}
		}
	}()
	data = []byte(strings.TrimPrefix(string(data), "\ufeff"))
	f, err := parser.ParseBytes(data, 0)
	if err != nil {
		fault := &FaultError{File: file, Message: "not valid YAML: mend the line; indent with spaces, quote text that holds : # { or ["}
		if e, ok := errors.AsType[yaml.Error](err); ok {
			fault.Message = "not valid YAML: " + e.GetMessage() + ": mend the line; indent with spaces, quote text that holds : # { or ["
			if t := e.GetToken(); t != nil && t.Position != nil {
				fault.Line, fault.Column = t.Position.Line, t.Position.Column
			}
		}
		return nil, fault
	}
	var body ast.Node
	for _, doc := range f.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if body != nil {
			at := place(file, doc.Body)
			return nil, &FaultError{File: file, Line: at.line, Column: at.column, Message: "a second YAML document: keep one"}
		}
		body = doc.Body
	}
	return body, nil
}

// place says where v stands.
func place(file string, v ast.Node) position {
	if v == nil {
		return position{file: file}
	}
	// A mapping's own token is its first colon; people look for its first key.
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
		return position{file: file}
	}
	return position{file: file, line: t.Position.Line, column: t.Position.Column}
}

// fail notes a fault at v. Its text says what is wrong and what to do.
func (d *decoder) fail(v ast.Node, field, format string, args ...any) {
	at := place(d.file, v)
	message := fmt.Sprintf(format, args...)
	if from := d.node.origin[field]; from != "" {
		// The text that is quoted stands nowhere in the file; what does is this.
		message += " (the value comes " + from + ")"
	}
	d.faults = append(d.faults, &FaultError{File: d.file, Line: at.line, Column: at.column, Field: field, Message: message})
}

// pair is one key of a mapping, with its value.
type pair struct {
	key   string
	name  ast.Node
	value ast.Node
}

// pairs returns the keys of a mapping in their order. Duplicates do not come this far: the parser refuses them.
func (d *decoder) pairs(field string, v ast.Node) []pair {
	var values []*ast.MappingValueNode
	switch m := v.(type) {
	case *ast.MappingNode:
		values = m.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{m}
	default:
		d.wrong(field, v, "a mapping of keys to values")
		return nil
	}
	var out []pair
	for _, kv := range values {
		key, ok := kv.Key.(ast.Node).(*ast.StringNode)
		if !ok {
			d.fail(kv.Key, field, "%s is not a plain key: write it as text, quoted where it is a number, and do not use << or ?", strings.TrimSpace(kv.Key.String()))
			continue
		}
		out = append(out, pair{key.Value, kv.Key, kv.Value})
	}
	return out
}

// group takes over the keys under one prefix ("" for the top).
func (d *decoder) group(prefix string, v ast.Node) {
	if prefix != "" {
		d.node.at[prefix] = place(d.file, v)
	}
	for _, p := range d.pairs(prefix, v) {
		name := join(prefix, p.key)
		if i := slices.IndexFunc(table(), func(f field) bool { return f.name == name }); i >= 0 {
			d.node.at[name] = place(d.file, p.value)
			if d.given(name, p.value) {
				table()[i].set(d, name, p.value)
			}
			continue
		}
		if slices.Contains(groups(), name) {
			if d.given(name, p.value) {
				d.group(name, p.value)
			}
			continue
		}
		d.strange(p, prefix, d.known(prefix, p.key))
	}
}

// given refuses a key without a value: it is as likely a value forgotten as a default meant.
func (d *decoder) given(field string, v ast.Node) bool {
	if v == nil || v.Type() == ast.NullType {
		d.fail(v, field, "has no value: give it one or take the key out")
		return false
	}
	return true
}

// wrong says that v is not of the wanted kind.
func (d *decoder) wrong(field string, v ast.Node, want string) {
	switch v.Type() {
	case ast.AnchorType, ast.AliasType, ast.TagType, ast.MergeKeyType:
		d.fail(v, field, "anchors, aliases and tags are not taken here: write out %s", want)
	default:
		d.fail(v, field, "is %s: write %s", kind(v), want)
	}
}

func kind(v ast.Node) string {
	switch v.Type() {
	case ast.MappingType, ast.MappingValueType:
		return "a mapping"
	case ast.SequenceType:
		return "a list"
	case ast.NullType:
		return "empty"
	case ast.StringType, ast.LiteralType:
		return "text"
	case ast.BoolType:
		return "true or false"
	case ast.IntegerType, ast.FloatType, ast.InfinityType, ast.NanType:
		return "a number"
	}
	return strings.ToLower(v.Type().String())
}

// list returns the elements of a list.
func (d *decoder) list(field string, v ast.Node, want string) []ast.Node {
	s, ok := v.(*ast.SequenceNode)
	if !ok {
		d.wrong(field, v, want)
		return nil
	}
	return s.Values
}

// raw returns text as it stands.
func (d *decoder) raw(field string, v ast.Node, want string) (string, bool) {
	switch s := v.(type) {
	case *ast.StringNode:
		return s.Value, true
	case *ast.LiteralNode:
		return s.Value.Value, true
	}
	d.wrong(field, v, want)
	return "", false
}

// text returns text with ${NAME} replaced.
func (d *decoder) text(field string, v ast.Node, want string) (string, bool) {
	s, ok := d.raw(field, v, want)
	if !ok {
		return "", false
	}
	out, err := expand(s, d.lookup)
	if err != nil {
		d.fail(v, field, "%v", err)
		return "", false
	}
	if out != s {
		d.node.origin[field] = "from " + s
	}
	return out, true
}

// expand replaces each ${NAME} by the environment's value. $${ stands for ${ itself. An empty variable is refused like an
// unset one: ":9253" in place of "10.0.0.1:9253" would be valid and listen to the world.
func expand(s string, lookup func(string) (string, bool)) (string, error) {
	var b strings.Builder
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			b.WriteString(s)
			return b.String(), nil
		}
		if i > 0 && s[i-1] == '$' {
			b.WriteString(s[:i-1] + "${")
			s = s[i+2:]
			continue
		}
		b.WriteString(s[:i])
		name, rest, closed := strings.Cut(s[i+2:], "}")
		if !closed || !isVariable(name) {
			return "", fmt.Errorf("%q does not name a variable: write ${NAME}, or $${ for the text ${", s[i:])
		}
		value, ok := lookup(name)
		if !ok {
			return "", fmt.Errorf("environment variable %s is not set: set it, or write the value here", name)
		}
		if value == "" {
			return "", fmt.Errorf("environment variable %s is empty: set it, or write the value here", name)
		}
		b.WriteString(value)
		s = rest
	}
}

func isVariable(name string) bool {
	for i, c := range name {
		letter := c == '_' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

func join(prefix, key string) string {
	if prefix == "" {
		return key
	}
	return prefix + "." + key
}

// retired are keys that former releases took, each with why it is gone. A file that still has one keeps its agent going.
func retired(name string) (why string, ok bool) {
	if name == "service" {
		return "no release ever used what stands in it: take it out", true
	}
	return "", false
}

// known tells which keys a mapping takes: the one that was probably meant, or all of them.
func (d *decoder) known(prefix, key string) string {
	if why, ok := retired(join(prefix, key)); ok {
		return why
	}
	var keys []string
	for _, name := range append(groups(), names()...) {
		rest, ok := strings.CutPrefix(name, prefix)
		if prefix != "" {
			rest, ok = strings.CutPrefix(name, prefix+".")
		}
		if ok && !strings.Contains(rest, ".") {
			keys = append(keys, rest)
		}
	}
	return suggest(key, keys)
}

// suggest words the remedy for an unknown key.
func suggest(key string, keys []string) string {
	slices.Sort(keys)
	best, least := "", 3
	for _, k := range keys {
		if n := distance(strings.ToLower(key), strings.ToLower(k)); n < least {
			best, least = k, n
		}
	}
	if best != "" {
		return fmt.Sprintf("did you mean %q?", best)
	}
	return "take it out; known here: " + strings.Join(keys, ", ")
}

// distance is the number of single edits between a and b (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
