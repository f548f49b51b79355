// Package strict reads what people wrote as configuration: a decoded value and its place give what was found and every fault, all
// of them at once, each with its place, its field and a remedy. NodeConfig, the plugin's entry in a conflist, overlays and
// annotations are read through it, whether they were YAML or JSON.
//
// It is a pure leaf: its callers read the files, and no value here knows its meaning. The plugin links it at every pod
// start, so it has no reflection of its own.
//
// Failure policy: a reader never guesses and never stops at the first fault. A value that could not be read is zero, together with a
// fault. A Reader is for one goroutine; values may be shared.
package strict

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Place is where something stands in a file.
type Place struct {
	File         string // "" if unknown
	Line, Column int    // from 1; 0 where unknown
}

// Fault is one thing that is wrong. Message ends with what to do about it.
type Fault struct { //nolint:errname // people read of faults, several at once; callers take them apart by their fields
	Place
	Field   string // as redirects[0].clusterDNS; "" for the whole
	Message string
	Unknown bool // a key that is not known: a slip, or one of a newer release
}

func (f *Fault) Error() string {
	s := f.Message
	if f.Field != "" {
		s = f.Field + ": " + s
	}
	switch {
	case f.File == "":
		return s
	case f.Line == 0:
		return f.File + ": " + s
	case f.Column == 0:
		return fmt.Sprintf("%s:%d: %s", f.File, f.Line, s)
	}
	return fmt.Sprintf("%s:%d:%d: %s", f.File, f.Line, f.Column, s)
}

// Reader collects what is wrong with the values that it reads. The zero value is ready, and words faults for JSON.
type Reader struct {
	// Expand, where set, replaces what a text stands for, such as ${NAME}.
	Expand func(v Value, text string) (string, error)
	// Strange, where set, makes the fault of a key that is none of those that are known.
	Strange func(m Member, known []string) *Fault
	// Wrong, where set, words that v is not the thing that is wanted ("a string"); remedy may be empty.
	Wrong func(v Value, want, remedy string) string

	faults []*Fault
}

// Faults returns what was found wrong, in the order in which it was found.
func (r *Reader) Faults() []*Fault { return r.faults }

// Err joins the faults, at most the first most of them (0: all); nil for none.
func (r *Reader) Err(most int) error {
	all := make([]error, 0, len(r.faults))
	for _, f := range r.faults {
		all = append(all, f)
	}
	return Bounded(all, most)
}

// Bounded joins errors, at most the first most of them (0: all): an annotation may hold 256 KiB of them.
func Bounded(all []error, most int) error {
	if most > 0 && len(all) > most {
		all = append(slices.Clone(all[:most]), fmt.Errorf("and %d more", len(all)-most))
	}
	return errors.Join(all...)
}

// Add notes a fault that its maker has placed.
func (r *Reader) Add(f *Fault) { r.faults = append(r.faults, f) }

// Fault notes a fault of v. The text names the fault and the remedy.
func (r *Reader) Fault(v Value, format string, args ...any) {
	r.Add(&Fault{Place: v.Place, Field: v.Field, Message: fmt.Sprintf(format, args...)})
}

// Unknown notes a key that is none of those that are known.
func (r *Reader) Unknown(m Member, known ...string) {
	if r.Strange != nil {
		r.Add(r.Strange(m, known))
		return
	}
	r.Add(&Fault{Place: m.Value.Place, Field: m.Value.Field, Message: "unknown key: " + Suggest(m.Key, known...), Unknown: true})
}

// Mismatch notes that v is not the thing that is wanted ("a string").
func (r *Reader) Mismatch(v Value, want, remedy string) {
	switch {
	case r.Wrong != nil:
		r.Fault(v, "%s", r.Wrong(v, want, remedy))
	case remedy == "":
		r.Fault(v, "%s, but %s is wanted", v.Kind, want)
	default:
		r.Fault(v, "%s, but %s is wanted: %s", v.Kind, want, remedy)
	}
}

// Text reads a string; ok is false after a fault.
func (r *Reader) Text(v Value) (text string, ok bool) {
	return r.TextOf(v, "a string", "put it in quotes")
}

// TextOf reads a string that is to hold what is wanted, such as "an address".
func (r *Reader) TextOf(v Value, want, remedy string) (text string, ok bool) {
	if v.Kind != String {
		r.Mismatch(v, want, remedy)
		return "", false
	}
	if r.Expand == nil {
		return v.Text, true
	}
	text, err := r.Expand(v, v.Text)
	if err != nil {
		r.Fault(v, "%v", err)
		return "", false
	}
	return text, true
}

// OneOf reports whether text, read from v, is among the values that are known.
func (r *Reader) OneOf(v Value, text string, known ...string) bool {
	if slices.Contains(known, text) {
		return true
	}
	r.Fault(v, "%s", NotOne(fmt.Sprintf("%q", text), known...))
	return false
}

// NotOne words that something is not among the values that are known.
func NotOne(shown string, known ...string) string {
	return shown + " is not known: write one of " + strings.Join(known, ", ")
}

// Items reads a list.
func (r *Reader) Items(v Value) []Value {
	return r.ItemsOf(v, "a list", "put it in brackets (in YAML behind a dash)")
}

// ItemsOf reads a list that is to hold what is wanted.
func (r *Reader) ItemsOf(v Value, want, remedy string) []Value {
	if v.Kind != List {
		r.Mismatch(v, want, remedy)
		return nil
	}
	return v.Items()
}

// Texts reads a list of strings, and returns what read makes of each.
func (r *Reader) Texts(v Value, read func(item Value, text string) string) []string {
	var out []string
	for _, item := range r.Items(v) {
		if text, ok := r.Text(item); ok {
			out = append(out, read(item, text))
		}
	}
	return out
}

// maxKeys bounds an object's keys: no object here has more than a few, and each is compared with those before it. An
// annotation of 64 KiB with 8,000 keys cost ADD 0.9 s of CPU time.
const maxKeys = 64

// Members reads an object in its own order. Keys that stand twice are faults, as most readers of JSON take the last of them
// without a word.
func (r *Reader) Members(v Value) []Member {
	if v.Kind != Object {
		r.Mismatch(v, "an object", "")
		return nil
	}
	all := r.Plain(v)
	if len(all) > maxKeys {
		r.Fault(v, "more than %d keys: take out those that are not settings", maxKeys)
		return nil
	}
	for i, m := range all {
		if slices.ContainsFunc(all[:i], func(o Member) bool { return o.Key == m.Key }) {
			r.Fault(m.Value, "stands there twice: write it once")
		}
	}
	return all
}

// Plain returns an object's members, however many. Keys that are no text are faults, and left out.
func (r *Reader) Plain(v Value) []Member {
	return slices.DeleteFunc(v.Members(), func(m Member) bool {
		if m.Odd != "" {
			r.Fault(Value{Field: v.Field, Place: m.Name},
				"%s is not a plain key: write it as text, quoted where it is a number, and do not use << or ?", m.Odd)
		}
		return m.Odd != ""
	})
}

// Suggest words the remedy for an unknown key: the one that was probably meant, or all that are known.
func Suggest(key string, known ...string) string {
	if near, ok := Nearest(key, known...); ok {
		return fmt.Sprintf("write %q", near)
	}
	return "take it out, or use one of " + strings.Join(known, ", ")
}

// Nearest returns the first of the known keys that key is a slip of: at most two letters from it, in either case and without
// regard to _ and -.
func Nearest(key string, known ...string) (near string, ok bool) {
	plain := strings.NewReplacer("_", "", "-", "")
	key = plain.Replace(strings.ToLower(key))
	least := 3
	for _, k := range known {
		if n := distance(key, plain.Replace(strings.ToLower(k))); n < least {
			near, least = k, n
		}
	}
	return near, least < 3
}

// distance is the number of single edits between a and b (Levenshtein). It need not be exact for texts that no slip joins.
func distance(a, b string) int {
	if d := len(a) - len(b); d > 2 || d < -2 {
		return 3
	}
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

// Clip keeps a message short whatever was written.
func Clip(s string) string { return ClipTo(s, 60) }

// ClipTo keeps at most most characters.
func ClipTo(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

// Quote keeps a message readable whatever was written.
func Quote(s string) string {
	if len(s) > 60 {
		return fmt.Sprintf("%.60q…", s)
	}
	return fmt.Sprintf("%q", s)
}

// IsWord accepts printable ASCII without white space: what every reader takes as one word.
func IsWord(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// MaxDomain is the longest name that DNS knows, written with dots (255 octets on the wire, RFC 1035, 2.3.4).
const MaxDomain = 253

// IsDomain accepts a domain without its final dot: labels of letters, digits, dashes within, and underscores.
func IsDomain(s string) bool {
	if s == "" || len(s) > MaxDomain {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
				return false
			}
		}
	}
	return true
}

// Join makes the path of a key. A key that is no word is quoted: it may have come from any source.
func Join(field, key string) string {
	if !IsWord(key) || len(key) > 60 {
		key = Quote(key)
	}
	if field == "" {
		return key
	}
	return field + "." + key
}
