package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/strict"
)

// Values are read field by field, not decoded into a struct. goccy/go-yaml's Strict() stops at the first fault, and an unknown key is one:
// a file with five mistakes would take five tries, and a rolled back agent would not start with the file of the newer one.

// decoder reads values into a Node, and collects their faults.
type decoder struct {
	strict.Reader
	node *Node
}

// decoder makes a decoder that replaces ${NAME} in texts, if lookup is not nil.
func (n *Node) decoder(lookup func(string) (string, bool)) *decoder {
	d := &decoder{node: n}
	d.Wrong = wrong
	d.Strange = func(m strict.Member, known []string) *strict.Fault { return strange(m, suggest(m.Key, known)) }
	if lookup != nil {
		d.Expand = func(v strict.Value, text string) (string, error) {
			out, err := expand(text, lookup)
			if err == nil && out != text {
				n.origin[v.Field] = "from " + text
			}
			return out, err
		}
	}
	return d
}

// decode reads the file into n.
func (n *Node) decode(file string, data []byte, lookup func(string) (string, bool)) error {
	n.at[""] = strict.Place{File: file}
	body, err := parse(file, data)
	if err != nil {
		return err
	}
	const start = ": start it with apiVersion: " + APIVersion + " and kind: " + Kind
	d := n.decoder(lookup)
	switch body.Kind {
	case "":
		return &strict.Fault{Place: n.at[""], Message: "the file is empty" + start}
	case strict.Object:
	default:
		return &strict.Fault{Place: body.Place, Message: "the file is " + kind(body) + start}
	}
	d.group(body)
	// Without these a file of another kind would only yield a list of unknown fields.
	for _, want := range []struct{ key, value string }{{"apiVersion", APIVersion}, {"kind", Kind}} {
		if _, ok := n.at[want.key]; !ok {
			d.Add(&strict.Fault{Place: n.at[""], Field: want.key, Message: "missing: add the line " + want.key + ": " + want.value})
		}
	}
	if !slices.ContainsFunc(d.Faults(), func(f *strict.Fault) bool { return !f.Unknown }) {
		// A rolled back agent meets the file of the newer one: unknown keys must not keep it from starting.
		n.unknown = d.Faults()
		return nil
	}
	return d.Err(0)
}

// strange is the fault of an unknown key: a slip, or a key of a newer release.
func strange(m strict.Member, remedy string) *strict.Fault {
	return &strict.Fault{Place: m.Name, Unknown: true, Message: fmt.Sprintf("unknown field %q: %s", m.Value.Field, remedy)}
}

// fail adds a fault at v. Its text has what is wrong and what to do.
func (d *decoder) fail(v strict.Value, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if from := d.node.origin[v.Field]; from != "" {
		// The quoted text is not in the file; this is.
		message += " (the value comes " + from + ")"
	}
	d.Fault(v, "%s", message)
}

// pairs returns the keys of a mapping in their order.
func (d *decoder) pairs(v strict.Value) []strict.Member {
	if v.Kind != strict.Object {
		d.Mismatch(v, "a mapping of keys to values", "")
		return nil
	}
	return d.Plain(v)
}

// group reads the keys of the whole file, or those under one prefix.
func (d *decoder) group(v strict.Value) {
	if v.Field != "" {
		d.node.at[v.Field] = v.Place
	}
	for _, m := range d.pairs(v) {
		name := join(v.Field, m.Key)
		if i := slices.IndexFunc(table(), func(f field) bool { return f.name == name }); i >= 0 {
			d.node.at[name] = m.Value.Place
			if d.given(m.Value) {
				table()[i].set(d, m.Value)
			}
			continue
		}
		if slices.Contains(groups(), name) {
			if d.given(m.Value) {
				d.group(m.Value)
			}
			continue
		}
		d.Add(strange(m, d.known(v.Field, m.Key)))
	}
}

// given refuses a key without a value: it may be a forgotten value or a wish for the default.
func (d *decoder) given(v strict.Value) bool {
	if v.IsNull() {
		d.fail(v, "has no value: give it one or take the key out")
	}
	return !v.IsNull()
}

// wrong is the message for a value of the wrong kind.
func wrong(v strict.Value, want, _ string) string {
	if v.Kind == strict.Other {
		return "anchors, aliases and tags are not taken here: write out " + want
	}
	return "is " + kind(v) + ": write " + want
}

// kind is the name of a kind of value in YAML.
func kind(v strict.Value) string {
	switch v.Kind {
	case strict.Object:
		return "a mapping"
	case strict.Null:
		return "empty"
	case strict.String:
		return "text"
	case strict.Boolean:
		return "true or false"
	}
	return string(v.Kind)
}

// text returns text with ${NAME} replaced.
func (d *decoder) text(v strict.Value, want string) (string, bool) { return d.TextOf(v, want, "") }

// raw returns text as it is.
func (d *decoder) raw(v strict.Value, want string) (string, bool) {
	if v.Kind != strict.String {
		d.Mismatch(v, want, "")
	}
	return v.Text, v.Kind == strict.String
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

func join(prefix, key string) string { return strings.TrimPrefix(prefix+"."+key, ".") }

// retired reports why a key of former releases is gone. A file may still have it.
func retired(name string) (why string, ok bool) {
	if name == "service" {
		return "no release ever used what stands in it: take it out", true
	}
	return "", false
}

// known is the remedy for an unknown key of a mapping: the key that was probably meant, or all keys.
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

// suggest is the remedy for an unknown key, from the known ones.
func suggest(key string, keys []string) string {
	slices.Sort(keys)
	if near, ok := strict.Nearest(key, keys...); ok {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "take it out; known here: " + strings.Join(keys, ", ")
}
