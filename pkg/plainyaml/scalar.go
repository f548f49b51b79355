package plainyaml

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"

	"github.com/neardns/neardns/pkg/strict"
)

// scanner reads a value within one line.
type scanner struct {
	line line
	rest string // the part of the line that is not read yet
}

func (s *scanner) fault(format string, args ...any) error { return s.line.fault(format, args...) }

func (s *scanner) space() { s.rest = strings.TrimLeft(s.rest, " ") }

// end returns an error if anything but a comment follows the value on its line.
func (s *scanner) end() error {
	if rest := strings.TrimLeft(s.rest, " "); rest != "" && (rest[0] != '#' || len(rest) == len(s.rest)) {
		return s.fault("%q follows the end of the value", clip(rest))
	}
	return nil
}

// colon skips the colon after a quoted key, and reports whether there is one. In a flow mapping, no space has to follow it, as in
// JSON.
func (s *scanner) colon(flow bool) bool {
	rest := strings.TrimLeft(s.rest, " ")
	if !strings.HasPrefix(rest, ":") || !flow && len(rest) > 1 && rest[1] != ' ' {
		return false
	}
	s.rest = strings.TrimLeft(rest[1:], " ")
	return true
}

// value converts the next value to JSON: a flow list or mapping, a quoted word or a plain word. flow means that the value is inside
// brackets or braces.
func (s *scanner) value(out *bytes.Buffer, flow bool, depth int) error {
	if depth > maxDepth {
		return s.fault("more than %d levels", maxDepth)
	}
	switch s.rest[0] {
	case '[':
		return s.flow(out, ']', func() error { return s.value(out, true, depth+1) })
	case '{':
		return s.flow(out, '}', func() error { return s.flowPair(out, depth) })
	case '"', '\'':
		return s.quoted(out)
	}
	word := s.word(flow)
	if word == "" {
		return s.fault("a value is missing before %q", clip(s.rest))
	}
	return s.plain(out, word)
}

// flow reads a list in brackets or a mapping in braces, which must end on the same line. item reads one element.
func (s *scanner) flow(out *bytes.Buffer, end byte, item func() error) error {
	begin := s.rest[0]
	unclosed := s.fault("%q has no %q on the same line: write it in one line, each part on a line of its own without brackets, or all "+
		"of it as JSON", begin, end)
	out.WriteByte(begin)
	s.rest = s.rest[1:]
	for n := 0; ; n++ {
		s.space()
		if s.open() {
			return unclosed
		}
		if s.rest[0] == end {
			s.rest = s.rest[1:]
			out.WriteByte(end)
			return nil
		}
		if n > 0 {
			out.WriteByte(',')
		}
		if err := item(); err != nil {
			return err
		}
		s.space()
		switch {
		case strings.HasPrefix(s.rest, ","):
			s.rest = s.rest[1:]
		case s.open():
			return unclosed
		case s.rest[0] != end:
			return s.fault("a comma or %q is missing before %q", end, clip(s.rest))
		}
	}
}

// open reports whether the line ends before the closing bracket or brace.
func (s *scanner) open() bool { return s.rest == "" || s.rest[0] == '#' }

func (s *scanner) flowPair(out *bytes.Buffer, depth int) error {
	if c := s.rest[0]; c == '"' || c == '\'' {
		if err := s.quoted(out); err != nil {
			return err
		}
		if !s.colon(true) {
			return s.fault("a colon is missing before %q", clip(s.rest))
		}
	} else {
		at := strings.Index(s.rest, ": ")
		if at < 0 || !isKey(strings.TrimRight(s.rest[:at], " ")) {
			return s.fault("a key with a colon and a space behind it is wanted before %q", clip(s.rest))
		}
		out.Write(encode(strings.TrimRight(s.rest[:at], " ")))
		s.rest = s.rest[at+2:]
		s.space()
	}
	out.WriteByte(':')
	if s.rest == "" {
		return s.fault("a value is missing at the end")
	}
	return s.value(out, true, depth+1)
}

// quoted reads the quoted word at the start of rest, and writes it to out as a JSON string.
func (s *scanner) quoted(out *bytes.Buffer) error {
	quote := s.rest[0]
	for i := 1; i < len(s.rest); i++ {
		switch {
		case quote == '"' && s.rest[i] == '\\':
			i++
			// Refuse an escaped surrogate pair: YAML decodes each half by itself, JSON decodes both together.
			if i+2 < len(s.rest) && s.rest[i] == 'u' && strings.ContainsRune("dD", rune(s.rest[i+1])) &&
				strings.ContainsRune("89abcdefABCDEF", rune(s.rest[i+2])) {
				return s.fault("write the character itself in place of \\%s", s.rest[i:i+3])
			}
		case s.rest[i] != quote:
		case quote == '\'' && i+1 < len(s.rest) && s.rest[i+1] == '\'':
			i++
		default:
			word := s.rest[:i+1]
			s.rest = s.rest[i+1:]
			return s.unquote(out, word)
		}
	}
	return s.fault("%s has no closing quote on the same line", clip(s.rest))
}

func (s *scanner) unquote(out *bytes.Buffer, word string) error {
	if word[0] == '\'' {
		out.Write(encode(strings.ReplaceAll(word[1:len(word)-1], "''", "'")))
		return nil
	}
	var text string
	if err := json.Unmarshal([]byte(word), &text); err != nil {
		return s.fault("%s: only the escapes of JSON are read here", clip(word))
	}
	out.Write(encode(text))
	return nil
}

// word returns the plain word that comes next, and skips it. A word ends before a comment; inside brackets or braces (flow), it also ends
// before a comma, bracket or brace.
func (s *scanner) word(flow bool) string {
	end := len(s.rest)
	if at := commentAt(s.rest); at >= 0 {
		end = at
	}
	if flow {
		if at := strings.IndexAny(s.rest[:end], ",[]{}"); at >= 0 {
			end = at
		}
	}
	word := strings.TrimRight(s.rest[:end], " ")
	s.rest = s.rest[len(word):]
	return word
}

// plain converts a plain word to JSON. It accepts only characters that have no meaning in YAML inside a word, in block or flow
// style, so a reader can see that every accepted word is valid YAML. Any other word is an error and needs quotes.
func (s *scanner) plain(out *bytes.Buffer, word string) error {
	if word == "~" {
		out.WriteString("null")
		return nil
	}
	if strings.Contains(word, ": ") || strings.HasSuffix(word, ":") {
		return s.fault("%q has a colon where YAML begins a value: put it in quotes, or the key on a line of its own", clip(word))
	}
	for i, c := range []byte(word) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '/':
		case c == '-' && (i > 0 || len(word) > 1 && word[1] != '-'): // a lone dash begins a list item, and --- a document
		case c == '%' && i > 0: // at the start of a line, % begins a YAML directive
		case c == ':': // a colon at the end of a word would end a key; the check above refuses it
		case c == '-' || c == '%':
			return s.fault("%q has a %q where it has a meaning in YAML: put it in quotes", clip(word), c)
		default:
			return s.fault("%q is no plain word of letters, digits and . _ - / : %%: put it in quotes", clip(word))
		}
	}
	switch resolve(word) {
	case null:
		out.WriteString("null")
	case boolean:
		out.WriteString(word)
	case integer:
		out.WriteString(word)
	case unsure:
		return s.fault("%q is a word to some readers of YAML, and a number, a time or a truth value to others: put it in quotes", clip(word))
	case text:
		out.Write(encode(word))
	}
	return nil
}

// meaning is the JSON type that a plain word stands for.
type meaning int

const (
	text meaning = iota
	null
	boolean
	integer
	unsure
)

// resolve returns the meaning that a plain word has in both YAML 1.1 and YAML 1.2, or unsure if the two differ or may differ.
func resolve(word string) meaning {
	switch word {
	case "null", "Null", "NULL":
		return null
	case "true", "false":
		return boolean
	}
	switch strings.ToLower(word) {
	case "null", "true", "false", "yes", "no", "on", "off", "y", "n":
		return unsure
	}
	if strings.IndexByte("-.0123456789", word[0]) < 0 {
		return text
	}
	unsigned := strings.TrimPrefix(word, "-")
	digits := unsigned != "" && strings.TrimLeft(unsigned, "0123456789") == ""
	switch {
	// Every parser's integers hold 18 digits. Some parsers read a number with a leading 0 as octal.
	case digits && len(unsigned) <= 18 && (word == "0" || unsigned[0] != '0'):
		return integer
	case strings.EqualFold(unsigned, ".inf") || strings.EqualFold(unsigned, ".nan"):
		return unsure
	case word == "." || isAddress(word):
		return text
	// The other numbers and times of YAML 1.1 and 1.2 consist of these characters, + and spaces, and the method plain accepts neither
	// + nor spaces. Other words of these characters need quotes too.
	case strings.Trim(word, "0123456789abcdefABCDEFxXoO_.:-tTzZ") == "":
		return unsure
	}
	return text
}

// isAddress reports whether a word is an IP address and cannot be a number. An address of only digits and single colons does not
// count, because YAML 1.1 reads it as a number of base 60.
func isAddress(word string) bool {
	_, err := netip.ParseAddr(word)
	return err == nil && strings.Trim(word, "0123456789:") != "" || err == nil && strings.Contains(word, "::")
}

// clip shortens a text for a message to at most 40 characters, as strict.ClipTo does.
func clip(s string) string { return strict.ClipTo(s, 40) }
