// Package answers keeps DNS answers as they go over the wire: the question as a key, the answer with the places where a reply
// differs from what is kept, and the store that holds them within bounds of bytes and of number.
//
// It knows messages, not servers: no sockets, no CoreDNS, no configuration. Everything in it may be used by several
// goroutines at once, unless its comment says otherwise.
//
// Failure policy: a message that it does not understand is not kept; a snapshot that it does not understand is refused
// whole. It never gives an answer for longer than it was told to.
package answers

import (
	"encoding/binary"
	"errors"
	"hash/maphash"
)

// Sizes of RFC 1035, sections 2.3.4 and 4.1.
const (
	headerSize  = 12
	maxName     = 255
	maxLabel    = 63
	maxQuestion = maxName + 4
	maxMessage  = 65535
)

// ErrName is a name that has no wire form.
var ErrName = errors.New("not a domain name")

// AppendQuestion appends a question in wire form: the name in the case that it has, type and class. The name is in
// presentation form and ends with a dot (RFC 1035, section 5.1: \. and \DDD are read).
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
			value, used, ok := escaped(name[i+1:])
			if !ok {
				return b[:start], ErrName
			}
			i += used
			c = value
		}
		b = append(b, c)
	}
	if len(b)-label != 1 || len(b)-start > maxName {
		return b[:start], ErrName
	}
	b = binary.BigEndian.AppendUint16(b, qtype)
	return binary.BigEndian.AppendUint16(b, qclass), nil
}

// escaped reads what stands behind a backslash.
func escaped(s string) (value byte, used int, ok bool) {
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

// Key is a question in lower case and whether DNSSEC records (DO) and unchecked data (CD) are wanted, by which answers
// differ too. It is a value without pointers, so it costs no allocation where it does not escape.
type Key struct {
	n     int // of the question
	bytes [maxQuestion + 1]byte
}

const (
	keyDO = 1 << iota
	keyCD
)

// Set makes the key of a question in wire form, as AppendQuestion writes it.
func (k *Key) Set(question []byte, do, cd bool) {
	k.n = copy(k.bytes[:maxQuestion], question)
	lower(k.bytes[:k.n-4])
	flags := byte(0)
	if do {
		flags |= keyDO
	}
	if cd {
		flags |= keyCD
	}
	k.bytes[k.n] = flags
}

// Bytes are the key's bytes, unlike for unlike keys. They are the key's own.
func (k *Key) Bytes() []byte { return k.bytes[:k.n+1] }

// Question returns the parts of the key: the question in wire form and lower case, which is the key's own, and what is wanted beside.
func (k *Key) Question() (q []byte, do, cd bool) {
	flags := k.bytes[k.n]
	return k.bytes[:k.n], flags&keyDO != 0, flags&keyCD != 0
}

func (k *Key) hash(seed maphash.Seed) uint64 { return maphash.Bytes(seed, k.Bytes()) }

// lower changes ASCII letters (RFC 4343). Lengths of labels are below 'A', so a name in wire form may be changed whole.
func lower(b []byte) {
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
}
