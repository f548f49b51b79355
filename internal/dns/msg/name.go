package msg

import (
	"encoding/binary"
	"errors"
)

// ErrName means that a name cannot be written in wire form.
var ErrName = errors.New("not a domain name")

// skipLabels returns the offset of what ends the labels at an offset: the root label or a compression pointer, if the message is whole.
func skipLabels[B []byte | string](m B, off int) int {
	for off < len(m) && m[off] != 0 && m[off] <= maxLabel {
		off += int(m[off]) + 1
	}
	return off
}

// skipName returns the offset after a name. It does not follow a compression pointer, which ends the name.
func skipName(m []byte, off int) (end int, ok bool) {
	switch off = skipLabels(m, off); {
	case off < len(m) && m[off] == 0:
		return off + 1, true
	case off+2 <= len(m) && m[off] >= 0xc0:
		return off + 2, true
	}
	return 0, false
}

// Question returns a message's question section, which must have one record. It fails on a compression pointer, because there is no name
// before the section to point to.
func Question[B []byte | string](m B) (question B, ok bool) {
	off := skipLabels(m, HeaderSize)
	end := off + MinQuestion // the root label, type and class
	if end > len(m) || m[off] != 0 || end > HeaderSize+MaxQuestion {
		return question, false
	}
	return m[HeaderSize:end], true
}

// AppendQuestion appends a question section: the name, whose case it does not change, type and class. The name is in presentation form
// and ends with a dot; it may have the escapes \X and \DDD (RFC 1035, section 5.1).
func AppendQuestion(b []byte, name string, qtype, qclass uint16) ([]byte, error) {
	start, label := len(b), len(b)
	b = append(b, 0)
	switch name {
	case "":
		return b[:start], ErrName
	case ".":
		name = ""
	}
	for i := 0; i < len(name); i++ {
		c := name[i]
		switch c {
		case '.':
			size := len(b) - label - 1
			if size == 0 || size > maxLabel {
				return b[:start], ErrName
			}
			b[label] = byte(size)
			label = len(b)
			b = append(b, 0)
			continue
		case '\\':
			value, used, ok := unescape(name[i+1:])
			if !ok {
				return b[:start], ErrName
			}
			i += used
			c = value
		}
		b = append(b, c)
	}
	if len(b)-label != 1 || len(b)-start > MaxName {
		return b[:start], ErrName
	}
	b = binary.BigEndian.AppendUint16(b, qtype)
	return binary.BigEndian.AppendUint16(b, qclass), nil
}

// unescape reads what follows a backslash.
func unescape(s string) (value byte, used int, ok bool) {
	digit := func(i int) (int, bool) {
		if i >= len(s) || s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		return int(s[i] - '0'), true
	}
	if s == "" {
		return 0, 0, false
	}
	a, isNumber := digit(0)
	if !isNumber {
		return s[0], 1, true
	}
	b, okB := digit(1)
	c, okC := digit(2)
	if n := a*100 + b*10 + c; okB && okC && n <= 255 {
		return byte(n), 3, true
	}
	return 0, 0, false
}

// Name returns a name in wire form, in lower case.
func Name(name string) ([]byte, error) {
	question, err := AppendQuestion(nil, name, 0, classIN)
	if err != nil {
		return nil, err
	}
	wire := question[:len(question)-4]
	lower(wire)
	return wire, nil
}

// NextLabel returns the offset after the label at an offset of a name in wire form.
func NextLabel(name []byte, off int) int { return off + 1 + int(name[off]) }

// lower changes ASCII letters to lower case (RFC 4343). It may be used for a whole name in wire form, because label lengths are below
// 'A'.
func lower(b []byte) {
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
}

// readName reads a name of plain characters, without compression pointers. It returns the offset after the name.
func readName(b []byte) (end int, ok bool) {
	at := 0
	for {
		if at >= len(b) || at >= MaxName {
			return 0, false
		}
		size := int(b[at])
		if size == 0 {
			return at + 1, true
		}
		if at++; size > maxLabel || at+size > len(b) {
			return 0, false
		}
		for _, c := range b[at : at+size] {
			if !plain[c] {
				return 0, false
			}
		}
		at += size
	}
}

// plain has the characters of plain names, which presentation form writes without escapes.
var plain = func() (t [256]bool) {
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") {
		t[c] = true
	}
	return t
}()
