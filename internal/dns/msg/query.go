package msg

import "encoding/binary"

// Types and classes that are compared here or in other packages.
const (
	TypeA    = 1
	TypeAAAA = 28
	typeOPT  = 41
	typeDS   = 43 // RFC 4034: CoreDNS looks it up in the parent zone's server block
	typeIXFR = 251
	typeAXFR = 252
	classIN  = 1
)

// Query is a plain query that was read from its bytes: opcode QUERY, class IN, one name of letters, digits, hyphens and underscores, no
// flag except RD, AD and CD, and at most an OPT record (version 0). Read leaves out a few types, for example AXFR.
type Query struct {
	ID       uint16
	Key      Key
	Question []byte // the question section, in the client's case; a slice of the message
	Type     uint16
	RD, CD   bool
	AD       bool // the client set AD or DO, and so understands AD (RFC 6840, sections 5.7 and 5.8)
	OPT      OPT  // the client's OPT record; its options are a slice of the message, not parsed
}

// Header bits that a plain query must not have set.
const (
	notPlain3 = 0xff &^ BitRD
	notPlain4 = 0xff &^ (BitAD | BitCD)
)

// Read parses a message. It returns false if the message is not a plain query; q is then undefined.
func (q *Query) Read(m []byte) bool {
	if len(m) < HeaderSize+5 || m[2]&notPlain3 != 0 || m[3]&notPlain4 != 0 ||
		binary.BigEndian.Uint32(m[4:]) != 1<<16 || binary.BigEndian.Uint16(m[8:]) != 0 || m[10] != 0 || m[11] > 1 {
		return false
	}
	end, ok := readName(m[HeaderSize:])
	if end += HeaderSize; !ok || len(m) < end+4 {
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
	q.ID = binary.BigEndian.Uint16(m)
	q.Question, q.RD, q.CD, q.OPT = m[HeaderSize:end], m[2]&BitRD != 0, m[3]&BitCD != 0, OPT{}
	if rest := m[end:]; m[11] == 0 {
		ok = len(rest) == 0
	} else {
		ok = q.OPT.read(rest)
	}
	q.AD = q.OPT.DO() || m[3]&BitAD != 0
	if ok {
		q.Key.Set(q.Question, q.OPT.DO(), q.CD)
	}
	return ok
}

// Name returns the queried name in wire form, in lower case.
func (q *Query) Name() []byte { return q.Key.Bytes()[:len(q.Question)-4] }
