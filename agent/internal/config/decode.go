package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/neardns/neardns/internal/configfile"
	"github.com/neardns/neardns/pkg/strict"
)

// Values are decoded field by field, not into a struct, because goccy/go-yaml's Strict() stops at the first fault. A file with five
// mistakes would take five tries. An unknown key is such a fault too, so after a rollback, the older release would not start with the
// newer release's file.

// decoder decodes values of the file into a Node, and collects their faults.
type decoder struct {
	strict.Reader
	node *Node
}

// decoder returns a decoder for n. It replaces ${NAME} in text values by environment variables, if lookup is not nil.
func (n *Node) decoder(lookup func(string) (string, bool)) *decoder {
	d := &decoder{node: n}
	if lookup != nil {
		d.Expand = func(v strict.Value, text string) (string, error) {
			out, err := configfile.Expand(text, lookup)
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
	body, err := configfile.Parse(file, data)
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
		return &strict.Fault{Place: body.Place, Message: "the file is " + string(body.Kind) + start}
	}
	d.group(body)
	// For a file of another kind, faults about unknown keys alone would not show the cause, so report what is missing.
	for _, want := range []struct{ key, value string }{{"apiVersion", APIVersion}, {"kind", Kind}} {
		if _, ok := n.at[want.key]; !ok {
			d.Add(&strict.Fault{Place: n.at[""], Field: want.key, Message: "missing: add the line " + want.key + ": " + want.value})
		}
	}
	if !slices.ContainsFunc(d.Faults(), func(f *strict.Fault) bool { return !f.Unknown }) {
		// Unknown keys are no fault: after a rollback, the older agent must start with the file of the newer one.
		n.unknown = d.Faults()
		return nil
	}
	return d.Err(0)
}

// fail adds a fault at the position of v. Its text has what is wrong and what to do.
func (d *decoder) fail(v strict.Value, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if from := d.node.origin[v.Field]; from != "" {
		// The message quotes the replaced text, but the file has ${NAME}: add where the text comes from.
		message += " (the value comes " + from + ")"
	}
	d.Fault(v, "%s", message)
}

// group decodes the keys of the whole file, or of a group such as cache.
func (d *decoder) group(v strict.Value) {
	if v.Field != "" {
		d.node.at[v.Field] = v.Place
	}
	for _, m := range d.Plain(v) {
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
		d.Unknown(m, known(v.Field)...)
	}
}

// given reports whether a key has a value. If not, it adds a fault: the value may be forgotten, or the default may be meant.
func (d *decoder) given(v strict.Value) bool {
	if v.IsNull() {
		d.fail(v, "has no value: give it one or take the key out")
	}
	return !v.IsNull()
}

// raw returns text as it is.
func (d *decoder) raw(v strict.Value, want string) (string, bool) {
	if v.Kind != strict.String {
		d.Mismatch(v, want)
	}
	return v.Text, v.Kind == strict.String
}

func join(prefix, key string) string { return strings.TrimPrefix(prefix+"."+key, ".") }

// known returns the known keys of a group, or of the whole file, sorted.
func known(group string) []string {
	var keys []string
	for _, name := range append(groups(), names()...) {
		if key, ok := strings.CutPrefix(name, join(group, "")); ok && !strings.Contains(key, ".") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}
