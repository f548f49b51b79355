// Package strict checks configuration that people wrote. Its input is a decoded value with its position in the file. Its output is
// what the value holds and all faults at once, each with its position, its field and a remedy. It reads NodeConfig, the plugin's
// entry in a conflist, overlays and annotations, from YAML or JSON.
//
// It is pure: its callers read the files and know what the values mean. The plugin runs it at every pod start, so it uses no
// reflection itself.
//
// Failure policy: a reader never guesses and never stops at the first fault. If a value cannot be read, the result is a zero value
// and a fault. A Reader is for one goroutine; values may be shared.
package strict

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Place is the position of a value or key in a file.
type Place struct {
	File         string // name of the file; "" if unknown
	Line, Column int    // from 1; 0 if unknown
}

// Fault is one error in a configuration. Message describes the error and usually ends with the remedy.
type Fault struct { //nolint:errname // a fault is for people, who read several at once; callers use its fields
	Place
	Field   string // path of the field, for example redirects[0].clusterDNS; "" for the whole configuration
	Message string
	Unknown bool // the key is unknown: it is misspelled, or belongs to a newer release
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

// Reader reads values and collects their faults. The zero value is ready to use.
type Reader struct {
	// Expand, if set, replaces the variables in the text of v, for example ${NAME}. An error of Expand is a fault of v.
	Expand func(v Value, text string) (string, error)

	faults []*Fault
}

// Faults returns all faults found so far, in the order in which they were found.
func (r *Reader) Faults() []*Fault { return r.faults }

// Err joins the faults to one error. It has at most the first most faults, and the number of the others; if most is 0, it has all. It
// is nil if there are none. An annotation of 256 KiB could have a great many faults.
func (r *Reader) Err(most int) error {
	all := make([]error, 0, len(r.faults))
	for _, f := range r.faults {
		all = append(all, f)
	}
	if most > 0 && len(all) > most {
		all = append(all[:most], fmt.Errorf("and %d more", len(all)-most))
	}
	return errors.Join(all...)
}

// Sorted returns the errors that err joins, also in several layers, as one joined error: sorted by file, line and column of their faults.
// Errors without a position come first.
func Sorted(err error) error {
	all := []error{err}
	for i := 0; i < len(all); {
		//nolint:errorlint // an error that wraps a joined one has text of its own, and stays whole
		if joined, ok := all[i].(interface{ Unwrap() []error }); ok {
			all = slices.Replace(all, i, i+1, joined.Unwrap()...)
		} else {
			i++
		}
	}
	slices.SortStableFunc(all, func(a, b error) int {
		f, g := &Fault{}, &Fault{}
		_, _ = errors.As(a, &f), errors.As(b, &g)
		return cmp.Or(cmp.Compare(f.File, g.File), cmp.Compare(f.Line, g.Line), cmp.Compare(f.Column, g.Column))
	})
	return errors.Join(all...)
}

// Add records a fault whose place and field the caller has set.
func (r *Reader) Add(f *Fault) { r.faults = append(r.faults, f) }

// Fault records a fault at v. The text describes the fault and gives the remedy.
func (r *Reader) Fault(v Value, format string, args ...any) {
	r.Add(&Fault{Place: v.Place, Field: v.Field, Message: fmt.Sprintf(format, args...)})
}

// Unknown records a fault for a key that is not in known: it is misspelled, or only a newer release knows it.
func (r *Reader) Unknown(m Member, known ...string) {
	r.Add(&Fault{Place: m.Name, Field: m.Value.Field, Message: "unknown key: " + Suggest(m.Key, known...), Unknown: true})
}

// Mismatch records a fault because v is not of the kind want, for example "a string".
func (r *Reader) Mismatch(v Value, want string) {
	if v.Kind == Other {
		r.Fault(v, "is %s, which are not read: write it out, as %s", v.Kind, want)
		return
	}
	r.Fault(v, "is %s: write %s", v.Kind, want)
}

// Text returns the string that v holds. ok is false after a fault: v is no string, or Expand failed.
func (r *Reader) Text(v Value) (text string, ok bool) { return r.TextOf(v, "a string, in quotes") }

// TextOf is Text for a string with a meaning: want names what is expected in a message, for example "an address".
func (r *Reader) TextOf(v Value, want string) (text string, ok bool) {
	if v.Kind != String {
		r.Mismatch(v, want)
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

// OneOf reports whether text, which was read from v, is in known. If not, it records a fault at v.
func (r *Reader) OneOf(v Value, text string, known ...string) bool {
	if slices.Contains(known, text) {
		return true
	}
	r.Fault(v, "%s", NotOne(fmt.Sprintf("%q", text), known...))
	return false
}

// NotOne returns the message for a value that is not in known.
func NotOne(shown string, known ...string) string {
	return shown + " is not known: write one of " + strings.Join(known, ", ")
}

// Items returns the items of a list. If v is no list, it records a fault.
func (r *Reader) Items(v Value) []Value { return r.ItemsOf(v, "a list, such as [\"a\", \"b\"]") }

// ItemsOf returns the items of a list. If v is no list, it records a fault that names want, for example "a list of addresses".
func (r *Reader) ItemsOf(v Value, want string) []Value {
	if v.Kind != List {
		r.Mismatch(v, want)
	}
	return v.Items()
}

// Texts calls read for each string in a list and returns the results. An item that is no string is a fault and is left out.
func (r *Reader) Texts(v Value, read func(item Value, text string) string) []string {
	var out []string
	for _, item := range r.Items(v) {
		if text, ok := r.Text(item); ok {
			out = append(out, read(item, text))
		}
	}
	return out
}

// maxKeys limits the keys of a settings object. None needs as many, and each unknown key is compared with all known ones: an annotation of
// 64 KiB may have 8,000 keys.
const maxKeys = 64

// Members returns an object's members in the order of the text. If v is no object or has more than 64 keys, it records a fault and returns
// none.
func (r *Reader) Members(v Value) []Member {
	if len(v.Members()) > maxKeys {
		r.Fault(v, "more than %d keys: take out those that are not settings", maxKeys)
		return nil
	}
	return r.Plain(v)
}

// Plain returns an object's members in the order of the text, without a limit on their number. If v is no object, it records a fault. A key
// that occurs twice is a fault, because most JSON parsers use the last one without an error. A key that is not a string, which only YAML
// allows, is a fault and is left out.
func (r *Reader) Plain(v Value) []Member {
	if v.Kind != Object {
		r.Mismatch(v, "an object, such as {\"key\": \"value\"}")
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(v.Members(), func(m Member) bool {
		if m.Odd != "" {
			r.Fault(Value{Field: v.Field, Place: m.Name},
				"%s is not a plain key: write it as text, quoted where it is a number, and do not use << or ?", m.Odd)
			return true
		}
		if seen[m.Key] {
			r.Fault(m.Value, "appears twice: write it once")
		}
		seen[m.Key] = true
		return false
	})
}

// Suggest returns the remedy for an unknown key: the known key that was probably meant, or the list of all known keys.
func Suggest(key string, known ...string) string {
	if near, ok := Nearest(key, known...); ok {
		return fmt.Sprintf("write %q", near)
	}
	return "take it out, or use one of " + strings.Join(known, ", ")
}

// Nearest returns the known key that key probably is a misspelling of: the one that differs least, by at most two letters. Case, _
// and - do not count.
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

// distance returns the Levenshtein distance of a and b. If their lengths differ by more than 2, it returns 3, which is too much for
// Nearest anyway.
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

// ClipTo returns at most the given number of the first characters of s, with … after them if it left some out.
func ClipTo(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

// Quote returns s for a message: in quotes, with control characters escaped, and at most 60 characters of it.
func Quote(s string) string {
	if utf8.RuneCountInString(s) > 60 {
		return fmt.Sprintf("%.60q…", s)
	}
	return fmt.Sprintf("%q", s)
}

// IsWord reports whether s is printable ASCII without white space, which every parser reads as one word.
func IsWord(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// MaxDomain is the maximum length of a domain name in text form without its final dot (255 octets on the wire, RFC 1035, 2.3.4).
const MaxDomain = 253

// IsLabel reports whether s can be the name of a Kubernetes namespace or Service (RFC 1123, one label in lower case).
func IsLabel(s string) bool {
	return s != "" && len(s) <= 63 && s[0] != '-' && s[len(s)-1] != '-' && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// IsDomain reports whether s is a domain name without its final dot. A label may have letters, digits, underscores and, except at
// its ends, dashes.
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

// Join returns the path of a key in the object field. A key with unusual characters, or of more than 60, is quoted and cut to 60
// characters, because the configuration may come from an untrusted source.
func Join(field, key string) string {
	if !IsWord(key) || len(key) > 60 {
		key = Quote(key)
	}
	if field == "" {
		return key
	}
	return field + "." + key
}
