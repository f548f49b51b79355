package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/neardns/neardns/internal/configfile"
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
	d.Wrong = configfile.Wrong
	d.Strange = func(m strict.Member, known []string) *strict.Fault {
		return configfile.Strange(m, configfile.Suggest(m.Key, known))
	}
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
		return &strict.Fault{Place: body.Place, Message: "the file is " + configfile.Kind(body) + start}
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
		d.Add(configfile.Strange(m, d.known(v.Field, m.Key)))
	}
}

// given refuses a key without a value: it may be a forgotten value or a wish for the default.
func (d *decoder) given(v strict.Value) bool {
	if v.IsNull() {
		d.fail(v, "has no value: give it one or take the key out")
	}
	return !v.IsNull()
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
	return configfile.Suggest(key, keys)
}
