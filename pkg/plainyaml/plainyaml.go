// Package plainyaml converts YAML to JSON. It reads only the simple part of YAML that people write into annotations: block mappings and
// lists, flow mappings and lists on one line, plain and quoted words, comments. The plugin runs at each pod start, so it links no YAML
// library (D-027).
//
// It is pure and keeps no state. It refuses documents, anchors, tags, block scalars and words of several lines. A plain word is ~ (null),
// or has only letters, digits and . _ - / : %; any other word must be quoted.
//
// Failure policy: every text that it accepts means the same to YAML libraries, which a differential fuzz test checks. A text that
// two libraries may read differently, for example yes or 010, is an error that names the line and the remedy: quotes. It never
// guesses.
package plainyaml

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	maxSize  = 64 << 10 // bytes of text; the API server allows at most 256 KiB for all annotations of an object
	maxDepth = 16       // levels of nested lists and mappings; those in brackets or braces are counted separately
)

// JSON converts text to JSON. Text that is already JSON is returned as it is. Keys keep their order, and duplicate keys stay, so
// that the decoder of the JSON can report them.
func JSON(text string) ([]byte, error) {
	switch {
	case len(text) > maxSize:
		return nil, fmt.Errorf("%d bytes: %d are read at most", len(text), maxSize)
	case json.Valid([]byte(text)):
		return []byte(text), nil
	case !utf8.ValidString(text):
		return nil, fmt.Errorf("not UTF-8")
	}
	p := &parser{}
	if err := p.split(text); err != nil {
		return nil, err
	}
	if len(p.lines) == 0 {
		return nil, fmt.Errorf("nothing is written there")
	}
	if p.lines[0].indent > 0 && p.lines[0].indent > p.least() {
		return nil, p.lines[0].fault("it is indented deeper than what follows")
	}
	if err := p.node(p.lines[0].indent, 0); err != nil {
		return nil, err
	}
	if p.at < len(p.lines) {
		return nil, p.lines[p.at].fault("it does not fit the lines before it: mind the indentation")
	}
	return p.out.Bytes(), nil
}

// line is a line that is neither blank nor only a comment. text has no indentation and no line end, but may end with a comment.
type line struct {
	number int // line number in the text, from 1
	indent int // column where text begins, from 0
	text   string
}

func (l line) fault(format string, args ...any) error {
	return fmt.Errorf("line %d: %s", l.number, fmt.Sprintf(format, args...))
}

type parser struct {
	lines []line
	at    int
	out   bytes.Buffer
}

func (p *parser) split(text string) error {
	number := 0
	for raw := range strings.Lines(text) {
		number++
		raw = strings.TrimSuffix(strings.TrimSuffix(raw, "\n"), "\r")
		body := strings.TrimLeft(raw, " ")
		l := line{number: number, indent: len(raw) - len(body), text: strings.TrimRight(body, " ")}
		if l.text == "" || l.text[0] == '#' {
			continue
		}
		for i, r := range l.text {
			// Some YAML parsers treat NEL and the Unicode separators as line ends and drop a byte order mark; others do not.
			if r < ' ' || r >= 0x7f && r <= 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfeff || r == 0xfffe || r == 0xffff {
				return l.fault("character %d (%U) cannot stand here: indent with spaces", l.indent+i+1, r)
			}
		}
		if strings.HasPrefix(l.text, "---") || strings.HasPrefix(l.text, "...") {
			return l.fault("documents and their marks are not read here: take it out")
		}
		p.lines = append(p.lines, l)
	}
	return nil
}

// least returns the smallest indentation of all lines.
func (p *parser) least() int {
	out := p.lines[0].indent
	for _, l := range p.lines {
		out = min(out, l.indent)
	}
	return out
}

// node reads the list, mapping or value that begins at the current line. indent is that line's indentation.
func (p *parser) node(indent, depth int) error {
	l := p.lines[p.at]
	if depth > maxDepth {
		return l.fault("more than %d levels", maxDepth)
	}
	if isItem(l.text) {
		return p.list(indent, depth)
	}
	_, _, isPair, err := l.pair()
	switch {
	case err != nil:
		return err
	case isPair:
		return p.mapping(indent, depth)
	}
	p.at++
	return p.value(l, l.text)
}

func isItem(text string) bool { return text == "-" || strings.HasPrefix(text, "- ") }

func (p *parser) list(indent, depth int) error {
	p.out.WriteByte('[')
	for n := 0; p.at < len(p.lines) && p.lines[p.at].indent == indent && isItem(p.lines[p.at].text); n++ {
		if n > 0 {
			p.out.WriteByte(',')
		}
		l := &p.lines[p.at]
		// The text after the dash is a node of its own. Its indentation is the column where it begins.
		rest := strings.TrimLeft(l.text[1:], " ")
		if rest == "" || rest[0] == '#' {
			p.at++
			if p.at < len(p.lines) && p.lines[p.at].indent > indent {
				if err := p.node(p.lines[p.at].indent, depth+1); err != nil {
					return err
				}
				continue
			}
			p.out.WriteString("null")
			continue
		}
		l.indent += len(l.text) - len(rest)
		l.text = rest
		if err := p.node(l.indent, depth+1); err != nil {
			return err
		}
	}
	p.out.WriteByte(']')
	return p.dedented(indent)
}

func (p *parser) mapping(indent, depth int) error {
	p.out.WriteByte('{')
	for n := 0; p.at < len(p.lines) && p.lines[p.at].indent == indent && !isItem(p.lines[p.at].text); n++ {
		if n > 0 {
			p.out.WriteByte(',')
		}
		l := p.lines[p.at]
		key, rest, isPair, err := l.pair()
		if err != nil {
			return err
		}
		if !isPair {
			return l.fault("a key with a colon and a space behind it is wanted here")
		}
		p.out.Write(key)
		p.out.WriteByte(':')
		p.at++
		if rest != "" && rest[0] != '#' {
			if err := p.value(l, rest); err != nil {
				return err
			}
			continue
		}
		// YAML allows a list to have the same indentation as its key.
		if p.at < len(p.lines) && (p.lines[p.at].indent > indent || p.lines[p.at].indent == indent && isItem(p.lines[p.at].text)) {
			if err := p.node(p.lines[p.at].indent, depth+1); err != nil {
				return err
			}
			continue
		}
		p.out.WriteString("null")
	}
	p.out.WriteByte('}')
	return p.dedented(indent)
}

// dedented returns an error if the line after a list or mapping is indented deeper than that list or mapping: such a line has no
// parent.
func (p *parser) dedented(indent int) error {
	if p.at < len(p.lines) && p.lines[p.at].indent > indent {
		return p.lines[p.at].fault("it is indented deeper than the line that it belongs to; a value of several lines is not read here")
	}
	return nil
}

// value reads the value that begins at text: a scalar, or a list or mapping in brackets or braces. Only a comment may follow on its line.
func (p *parser) value(l line, text string) error {
	s := &scanner{line: l, rest: text}
	if err := s.value(&p.out, false, 0); err != nil {
		return err
	}
	return s.end()
}

// pair splits a line into a key, as JSON, and the text after its colon. isPair is false if the line has no colon that ends a key.
func (l line) pair() (key []byte, rest string, isPair bool, err error) {
	if c := l.text[0]; c == '[' || c == '{' {
		return nil, "", false, nil
	}
	s := &scanner{line: l, rest: l.text}
	if c := l.text[0]; c == '"' || c == '\'' {
		var out bytes.Buffer
		if err := s.quoted(&out); err != nil {
			return nil, "", false, err
		}
		if !s.colon(false) {
			return nil, "", false, nil
		}
		return out.Bytes(), s.rest, true, nil
	}
	at := colonAt(l.text)
	if at < 0 || commentAt(l.text) >= 0 && commentAt(l.text) < at {
		return nil, "", false, nil
	}
	word := strings.TrimRight(l.text[:at], " ")
	if !isKey(word) {
		return nil, "", false, l.fault("%q is not a plain key: write letters, digits, dots, dashes and slashes, beginning with a letter, "+
			"or put it in quotes", word)
	}
	return encode(word), strings.TrimLeft(l.text[at+1:], " "), true, nil
}

// colonAt returns the index of the first colon before a space or at the end of text, which ends a key; -1 if there is none.
func colonAt(text string) int { return strings.Index(text+" ", ": ") }

// commentAt returns the index of the space before a comment that follows a plain word, or -1 if there is no comment.
func commentAt(text string) int { return strings.Index(text, " #") }

func isKey(word string) bool {
	for i, c := range []byte(word) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || !('0' <= c && c <= '9') && !strings.ContainsRune("._-/", rune(c))) {
			return false
		}
	}
	return word != "" && resolve(word) == text
}

// encode returns s as a JSON string.
func encode(s string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always encodes
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
