// Package msg reads and writes DNS messages byte by byte: header, names, question section, OPT record and cache key.
//
// No input makes it read beyond the message, and reading a plain query allocates nothing.
//
// On failure it returns false or an error. The caller then leaves the message to the DNS library, or drops it.
package msg

import "encoding/binary"

// Sizes in bytes (RFC 1035, sections 2.3.4, 4.1.1 and 4.2.2).
const (
	HeaderSize = 12
	MaxSize    = 1<<16 - 1 // of a message
	MaxName    = 255
	maxLabel   = 63

	typeClass   = 4 // in a question section, after the name
	MinQuestion = 1 + typeClass
	MaxQuestion = MaxName + typeClass
)

// Bits of the header's third and fourth byte (RFC 1035, section 4.1.1; RFC 4035, section 3.2).
const (
	BitQR = 1 << 7 // third byte
	BitAA = 1 << 2
	BitTC = 1 << 1
	BitRD = 1 << 0

	BitRA = 1 << 7 // fourth byte
	BitAD = 1 << 5
	BitCD = 1 << 4

	RcodeMask  = 0x0f      // of the fourth byte
	opcodeMask = 0x0f << 3 // of the third
)

// Header is a message's header. It has the same fields, in the same order, as dns.Header of the DNS library, so that one can be converted
// to the other.
type Header struct {
	Id                                 uint16 //nolint:revive // the library's name
	Bits                               uint16
	Qdcount, Ancount, Nscount, Arcount uint16
}

// ReadHeader returns the header of a message of at least HeaderSize bytes.
func ReadHeader(m []byte) Header {
	word := func(i int) uint16 { return binary.BigEndian.Uint16(m[2*i:]) }
	return Header{word(0), word(1), word(2), word(3), word(4), word(5)}
}

// ID returns the ID of a message of at least HeaderSize bytes.
func ID(m []byte) uint16 { return binary.BigEndian.Uint16(m) }

// SetID sets the ID of a message of at least HeaderSize bytes.
func SetID(m []byte, id uint16) { binary.BigEndian.PutUint16(m, id) }

// Adapt sets ID, RD and CD in a stored answer, which has none of them, and clears AD unless ad is true.
func Adapt(m []byte, id uint16, rd, cd, ad bool) {
	SetID(m, id)
	if rd {
		m[2] |= BitRD
	}
	if cd {
		m[3] |= BitCD
	}
	if !ad {
		m[3] &^= BitAD
	}
}

// Records returns the number of records after the question section.
func (h Header) Records() int { return int(h.Ancount) + int(h.Nscount) + int(h.Arcount) }

// Append appends the header.
func (h Header) Append(b []byte) []byte {
	for _, word := range [...]uint16{h.Id, h.Bits, h.Qdcount, h.Ancount, h.Nscount, h.Arcount} {
		b = binary.BigEndian.AppendUint16(b, word)
	}
	return b
}

// IsResponse reports whether a message of at least HeaderSize bytes is a response.
func IsResponse(m []byte) bool { return m[2]&BitQR != 0 }

// IsWholeAnswer reports whether a message is a response with opcode QUERY and one record in its question section, and is not truncated.
func IsWholeAnswer(m []byte) bool {
	return len(m) >= HeaderSize && len(m) <= MaxSize && m[2]&(BitQR|BitTC|opcodeMask) == BitQR && binary.BigEndian.Uint16(m[4:]) == 1
}

// Rcode returns the response code in the header, without the extension in an OPT record. The message must have at least HeaderSize bytes.
func Rcode[B []byte | string](m B) int { return int(m[3] & RcodeMask) }
