// Package fastpath is a question on the way past the chain: its plain form, read from the bytes that came, and the handlers that answer it
// with what is kept. A hit costs no allocation and waits for nobody.
//
// It owns which questions are plain. It knows no CoreDNS and no socket; beside packages wire and query it imports none of its siblings.
//
// Failure policy: a question that it does not understand whole is not plain, and the chain answers it.
package fastpath

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/queryinfo"
)

// Handler answers a plain question at once from what is kept, or leaves it to the chain. It is called by the goroutine that reads the
// socket, so it must never wait, and by several of them at the same time. What it counts it counts only where it answers.
type Handler interface {
	// Answer appends the answer's message to b. ok is false where the chain is to answer; b is then of no use. A question over UDP that
	// nothing is appended for gets no answer.
	Answer(b []byte, q *Question) (answer []byte, level queryinfo.Level, ok bool)
}

// Question is one question. Whoever reads a socket has one, and uses it again and again.
type Question struct {
	Wire   []byte     // the message as it came; over UDP it may be cut at 512 bytes
	Client netip.Addr // without zone and mapping
	Who    any        // what the front's observer knows of the client
	TCP    bool
	Begun  time.Time // when it was read

	// Plain is what Read found.
	Plain
}

// Plain is what a plain question says.
type Plain struct {
	Key    answers.Key
	Asked  []byte // the question section, in the client's case; part of Wire
	Type   uint16
	RD, CD bool
	AD     bool // the client understands AD (RFC 6840, sections 5.7 and 5.8)
	DO     bool
	EDNS   bool
	Size   uint16 // of UDP answers, as the client's OPT has it, and no more than Most
	Most   uint16 // of UDP answers, whatever the client takes: what those on the way to the cache bound it to
	Flags  byte   // the first byte of the OPT's flags, DO among them
	// Options are the OPT's, as ReadOptions leaves them: part of Wire, and not looked at.
	Options []byte

	labels [4]uint64 // where labels begin in Asked, one bit each
}

// Sizes and numbers of RFC 1035, sections 3.2.2, 3.2.3, 3.2.4 and 4.1.1, and RFC 6891, section 6.1.
const (
	headerSize = 12
	nameMost   = 255
	labelMost  = 63
	optSize    = 11 // without options

	typeDS   = 43 // RFC 4034: CoreDNS asks the parent's block
	typeOPT  = 41
	typeIXFR = 251
	typeAXFR = 252
	classIN  = 1

	bitRD   = 1 << 0 // of the third byte
	bitAD   = 1 << 5 // of the fourth, as the next one
	bitCD   = 1 << 4
	bitDO   = 1 << 7 // of the OPT's flags
	others3 = 0xff &^ bitRD
	others4 = 0xff &^ (bitAD | bitCD)
)

// Read reads Wire into Plain. It returns false where the question is not plain, and Plain then says nothing. Plain is a QUERY with one
// question of class IN for a name of letters, digits, hyphens and underscores, and behind it at most an OPT of version 0 without
// options; no other bit, record or byte.
func (q *Question) Read() bool { return q.ReadOptions() && len(q.Options) == 0 }

// ReadOptions is Read for a handler that looks at options itself: the OPT may have any.
func (q *Question) ReadOptions() bool {
	m := q.Wire
	if len(m) < headerSize+5 || m[2]&others3 != 0 || m[3]&others4 != 0 ||
		binary.BigEndian.Uint32(m[4:]) != 1<<16 || binary.BigEndian.Uint16(m[8:]) != 0 || m[10] != 0 || m[11] > 1 {
		return false
	}
	end, ok := q.name(m[headerSize:])
	if end += headerSize; !ok || len(m) < end+4 {
		return false
	}
	q.Type = binary.BigEndian.Uint16(m[end:])
	switch q.Type {
	case 0, typeDS, typeOPT, typeIXFR, typeAXFR:
		return false
	}
	if binary.BigEndian.Uint16(m[end+2:]) != classIN {
		return false
	}
	end += 4
	q.Asked = m[headerSize:end]
	q.RD, q.CD = m[2]&bitRD != 0, m[3]&bitCD != 0
	q.EDNS, q.DO, q.Size, q.Most, q.Flags, q.Options = m[11] == 1, false, 0, 1<<16-1, 0, nil
	if rest := m[end:]; !q.EDNS {
		ok = len(rest) == 0
	} else if ok = len(rest) >= optSize && rest[0] == 0 && binary.BigEndian.Uint16(rest[1:]) == typeOPT && binary.BigEndian.Uint16(rest[5:]) == 0 &&
		int(binary.BigEndian.Uint16(rest[9:])) == len(rest)-optSize; ok {
		q.Size, q.Flags, q.Options = binary.BigEndian.Uint16(rest[3:]), rest[7], rest[optSize:]
		q.DO = q.Flags&bitDO != 0
	}
	q.AD = q.DO || m[3]&bitAD != 0
	if ok {
		q.Key.Set(q.Asked, q.DO, q.CD)
	}
	return ok
}

// name reads a name without pointers and returns where it ends.
func (q *Question) name(b []byte) (end int, ok bool) {
	q.labels = [4]uint64{}
	at := 0
	for {
		if at >= len(b) || at >= nameMost {
			return 0, false
		}
		q.labels[at>>6] |= 1 << (at & 63)
		size := int(b[at])
		if size == 0 {
			return at + 1, true
		}
		if at++; size > labelMost || at+size > len(b) {
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

// plain are the characters of plain names. None of them is written in another way where names are text.
var plain = func() (t [256]bool) {
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") {
		t[c] = true
	}
	return t
}()

// ID is the message's (RFC 1035, section 4.1.1).
func (q *Question) ID() uint16 { return binary.BigEndian.Uint16(q.Wire) }

// Name is the question's name in wire form and lower case.
func (p *Plain) Name() []byte { return p.Key.Bytes()[:len(p.Asked)-4] }

// Zones finds the zone that a plain question's name is in: of several the longest. The zero value has none. It is not changed once it
// is used.
type Zones[V any] struct {
	by    map[string]V // by the zone's name in wire form and lower case
	sizes [nameMost + 1]bool
}

// Add adds a zone, by its name in presentation form. The first of two of one name stays.
func (z *Zones[V]) Add(zone string, v V) error {
	name, err := Name(zone)
	if err != nil {
		return err
	}
	if z.by == nil {
		z.by = map[string]V{}
	}
	if _, there := z.by[string(name)]; !there {
		z.by[string(name)], z.sizes[len(name)] = v, true
	}
	return nil
}

// Name returns a name in wire form and lower case.
func Name(name string) ([]byte, error) {
	question, err := answers.AppendQuestion(nil, name, 0, classIN)
	if err != nil {
		return nil, err
	}
	return bytes.ToLower(question[:len(question)-4]), nil
}

// Find returns the zone of a plain question.
func (z *Zones[V]) Find(p *Plain) (v V, ok bool) {
	name := p.Name()
	for at := 0; at < len(name); at += int(name[at]) + 1 {
		if z.sizes[len(name)-at] {
			if v, ok = z.by[string(name[at:])]; ok {
				return v, true
			}
		}
	}
	return v, false
}

// Within reports whether a plain question's name is in a zone, or is it, that Name returned.
func (p *Plain) Within(zone []byte) bool {
	name := p.Name()
	at := len(name) - len(zone)
	return at >= 0 && p.labels[at>>6]&(1<<(at&63)) != 0 && string(name[at:]) == string(zone)
}
