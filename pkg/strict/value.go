package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Kind is the kind of a value, in the words that messages use.
type Kind string

// The kinds of values. Other is for the parts of YAML that JSON lacks: anchors, aliases and tags.
const (
	Object  Kind = "an object"
	List    Kind = "a list"
	String  Kind = "a string"
	Boolean Kind = "a boolean"
	Null    Kind = "null"
	Number  Kind = "a number"
	Other   Kind = "an anchor, alias or tag"
)

// Value is one decoded value, with its path in the configuration and its position in the file. It must not be changed after it was
// first read.
type Value struct {
	Field string
	Place Place
	Kind  Kind
	Text  string // contents of a string, or another scalar as text

	// raw is the value's valid JSON, nil if another decoder read the value, and start its offset in the text that the function JSON got.
	// Items and Members decode raw when they are called.
	raw     []byte
	start   int
	items   []Value
	members []Member
}

// Member is one key of an object.
type Member struct {
	Key   string
	Odd   string // if the key is not a string, which only YAML allows: its source text
	Name  Place  // position of the key; in values that the function JSON returned, that of Value
	Value Value
}

// JSON returns the one JSON value in text, with the line of each value in it. field is the value's path in messages, and file the
// name of the file that it was read from ("" if none). If text is not valid JSON, the error is a *json.SyntaxError (see ErrorLine).
func JSON(file, field string, text []byte) (Value, error) {
	var raw json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		return Value{Field: field}, err
	}
	start := len(text) - len(bytes.TrimLeft(text, " \t\r\n"))
	return of(field, Place{File: file, Line: 1}.after(text[:start]), raw, start), nil
}

// ErrorLine returns the line of text, counted from 1, where JSON found a syntax error.
func ErrorLine(text []byte, err error) int {
	at := len(text)
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		at = min(int(syntax.Offset), at)
	}
	return 1 + bytes.Count(text[:at], []byte("\n"))
}

// after returns the place where a text ends that begins at p.
func (p Place) after(text []byte) Place {
	p.Line += bytes.Count(text, []byte("\n"))
	return p
}

// of returns the value of a JSON text that is known to be valid.
func of(field string, at Place, raw []byte, start int) Value {
	v := Value{Field: field, Place: at, raw: raw, start: start}
	switch raw[0] {
	case '{':
		v.Kind = Object
	case '[':
		v.Kind = List
	case '"':
		v.Kind = String
		_ = json.Unmarshal(raw, &v.Text) // cannot fail, because raw is a valid JSON string
	case 't', 'f':
		v.Kind, v.Text = Boolean, string(raw)
	case 'n':
		v.Kind, v.Text = Null, string(raw)
	default:
		v.Kind, v.Text = Number, string(raw)
	}
	return v
}

// inside calls take for each value in a JSON object or list, with its key, in the order of the text.
func (v Value) inside(take func(key string, v Value)) {
	dec := json.NewDecoder(bytes.NewReader(v.raw))
	_, _ = dec.Token() // the JSON is valid; its first token is the opening bracket
	for dec.More() {
		var key string
		if v.Kind == Object {
			t, _ := dec.Token()
			key, _ = t.(string)
		}
		var raw json.RawMessage
		if dec.Decode(&raw) != nil {
			return
		}
		at := int(dec.InputOffset()) - len(raw)
		take(key, of("", v.Place.after(v.raw[:at]), raw, v.start+at))
	}
}

// Raw returns the JSON text of a value that JSON returned, nil for any other value.
func (v Value) Raw() []byte { return v.raw }

// Start returns the offset of Raw in the text that JSON got.
func (v Value) Start() int { return v.start }

// End returns the offset after Raw.
func (v Value) End() int { return v.start + len(v.raw) }

// ListOf returns a list of values that another decoder has read. The method Items sets each value's Field from its position.
func ListOf(place Place, items []Value) Value { return Value{Kind: List, Place: place, items: items} }

// ObjectOf returns an object with members that another decoder has read. The method Members sets each value's Field from its key.
func ObjectOf(place Place, members []Member) Value {
	return Value{Kind: Object, Place: place, members: members}
}

// Items returns the values of a list, or none if v is no list.
func (v Value) Items() []Value {
	items := slices.Clone(v.items)
	if v.Kind == List && v.raw != nil {
		v.inside(func(_ string, item Value) { items = append(items, item) })
	}
	for i := range items {
		items[i].Field = fmt.Sprintf("%s[%d]", v.Field, i)
	}
	return items
}

// Members returns an object's members in the order of the text, duplicate keys included, or none if v is no object.
func (v Value) Members() []Member {
	members := slices.Clone(v.members)
	if v.Kind == Object && v.raw != nil {
		v.inside(func(key string, v Value) { members = append(members, Member{Key: key, Name: v.Place, Value: v}) })
	}
	for i := range members {
		members[i].Value.Field = Join(v.Field, members[i].Key)
	}
	return members
}

// Map returns an object's values by key. If a key occurs twice, the last one counts, as in encoding/json.
func (v Value) Map() map[string]Value {
	out := map[string]Value{}
	for _, m := range v.Members() {
		out[m.Key] = m.Value
	}
	return out
}

// At returns a stand-in for a missing value of the object v, for use in a fault: it has the field of key and the place of v.
func (v Value) At(key string) Value { return Value{Field: Join(v.Field, key), Place: v.Place} }

// IsNull reports whether v is null, missing or the zero Value.
func (v Value) IsNull() bool { return v.Kind == Null || v.Kind == "" }
