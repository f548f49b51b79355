package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Kind is the kind of a value; its text is for people.
type Kind string

// The kinds. Other is what only YAML has: anchors, aliases and tags.
const (
	Nothing Kind = "nothing"
	Object  Kind = "an object"
	List    Kind = "a list"
	String  Kind = "a string"
	Boolean Kind = "a boolean"
	Null    Kind = "null"
	Number  Kind = "a number"
	Other   Kind = "an anchor, alias or tag"
)

// Value is one decoded value, its path from the top, and its place. It must not be changed once it is read from.
type Value struct {
	Field string
	Place Place
	Kind  Kind
	Text  string // of a String: what it holds; of the other scalars: as it is written

	raw     []byte // JSON, valid; what is inside is read from it when it is needed
	items   []Value
	members []Member
}

// Member is one key of an object.
type Member struct {
	Key   string
	Odd   string // the source text of a key that is not a string, which only YAML has
	Name  Place  // of the key
	Value Value
}

// JSON reads a text that is one value of JSON, and knows the line of each value in it. field is what the value is called where it
// stands, file where it was read from ("" for none). A text that is no JSON is a *json.SyntaxError (see ErrorLine).
func JSON(file, field string, text []byte) (Value, error) {
	var raw json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		return Value{Field: field}, err
	}
	start := len(text) - len(bytes.TrimLeft(text, " \t\r\n"))
	return of(field, Place{File: file, Line: 1}.after(text[:start]), raw), nil
}

// ErrorLine is the line of text on which JSON found its error, from 1.
func ErrorLine(text []byte, err error) int {
	at := len(text)
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		at = min(int(syntax.Offset), at)
	}
	return 1 + bytes.Count(text[:at], []byte("\n"))
}

// after is the place behind a text that begins at p.
func (p Place) after(text []byte) Place {
	p.Line += bytes.Count(text, []byte("\n"))
	return p
}

// of makes a value of JSON that is known to be valid.
func of(field string, at Place, raw []byte) Value {
	raw = bytes.TrimSpace(raw)
	v := Value{Field: field, Place: at, raw: raw}
	switch raw[0] {
	case '{':
		v.Kind = Object
	case '[':
		v.Kind = List
	case '"':
		v.Kind = String
		_ = json.Unmarshal(raw, &v.Text) // a valid string is one
	case 't', 'f':
		v.Kind, v.Text = Boolean, string(raw)
	case 'n':
		v.Kind, v.Text = Null, string(raw)
	default:
		v.Kind, v.Text = Number, string(raw)
	}
	return v
}

// inside calls take for each value in an object or a list of JSON, with its key, in their order.
func (v Value) inside(take func(key string, v Value)) {
	dec := json.NewDecoder(bytes.NewReader(v.raw))
	_, _ = dec.Token() // it is valid, from the opening bracket on
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
		take(key, of("", v.Place.after(v.raw[:int(dec.InputOffset())-len(raw)]), raw))
	}
}

// Raw is the text of a value of JSON, nil for any other.
func (v Value) Raw() []byte { return v.raw }

// ListOf makes a list of values that were decoded elsewhere. Their fields follow from their position.
func ListOf(place Place, items []Value) Value { return Value{Kind: List, Place: place, items: items} }

// ObjectOf makes an object of members that were decoded elsewhere. Their fields follow from their keys.
func ObjectOf(place Place, members []Member) Value {
	return Value{Kind: Object, Place: place, members: members}
}

// Items returns a list's values; none of anything else.
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

// Members returns an object's members in their own order, with keys that stand twice; none of anything else.
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

// Map returns an object's values by key, the last one of a key that is there twice, as encoding/json has it.
func (v Value) Map() map[string]Value {
	out := map[string]Value{}
	for _, m := range v.Members() {
		out[m.Key] = m.Value
	}
	return out
}

// Sorted returns an object's members by key, the last one of a key that is there twice.
func (v Value) Sorted() []Member {
	all := v.Map()
	out := make([]Member, 0, len(all))
	for _, key := range slices.Sorted(maps.Keys(all)) {
		out = append(out, Member{Key: key, Name: all[key].Place, Value: all[key]})
	}
	return out
}

// At is the place of something within v that is not there, or is not read as a value: key's fault is at v.
func (v Value) At(key string) Value { return Value{Field: Join(v.Field, key), Place: v.Place} }

// IsNull reports whether nothing stands where a value may.
func (v Value) IsNull() bool { return v.Kind == Null || v.Kind == Nothing || v.Kind == "" }
