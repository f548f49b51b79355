package msg

import "encoding/binary"

const (
	optSize = 11 // size in bytes of an OPT record without options (RFC 6891, section 6.1.2)
	bitDO   = 1 << 7
	minUDP  = 512 // every client accepts UDP answers of this size (RFC 1035, section 4.2.1)
)

// OPT is an EDNS record of version 0 (RFC 6891, section 6.1). The zero value means that the message has none.
type OPT struct {
	Present bool
	Size    uint16 // the maximum size of a UDP answer in bytes
	Flags   byte   // the first byte of the flags; the second is ignored, and sent as zero
	Options []byte // in wire form
}

// read parses rest as an OPT record that ends the message. It returns false if it is anything else.
func (o *OPT) read(rest []byte) bool {
	if len(rest) < optSize || rest[0] != 0 || binary.BigEndian.Uint16(rest[1:]) != typeOPT || binary.BigEndian.Uint16(rest[5:]) != 0 ||
		int(binary.BigEndian.Uint16(rest[9:])) != len(rest)-optSize {
		return false
	}
	*o = OPT{Present: true, Size: binary.BigEndian.Uint16(rest[3:]), Flags: rest[7], Options: rest[optSize:]}
	return true
}

// DO reports whether DNSSEC records are wanted.
func (o *OPT) DO() bool { return o.Flags&bitDO != 0 }

// KeepDO clears all flags except DO.
func (o *OPT) KeepDO() { o.Flags &= bitDO }

// Len is how many bytes Append appends.
func (o *OPT) Len() int {
	if !o.Present {
		return 0
	}
	return optSize + len(o.Options)
}

// Append appends the record to the message that begins at b[start], and counts it in the message's header.
func (o *OPT) Append(b []byte, start int) []byte {
	if !o.Present {
		return b
	}
	// The root's name, type, UDP size, extended response code 0, version 0, flags, and the length of the options.
	b = append(b, 0, 0, typeOPT, byte(o.Size>>8), byte(o.Size), 0, 0, o.Flags, 0, byte(len(o.Options)>>8), byte(len(o.Options)))
	b = append(b, o.Options...)
	additional := b[start+10:]
	binary.BigEndian.PutUint16(additional, binary.BigEndian.Uint16(additional)+1)
	return b
}

// CutOption returns the code and content of the first option, and the options after it; ok is false if there is no whole option.
func CutOption(options []byte) (code uint16, content, rest []byte, ok bool) {
	if len(options) >= 4 {
		if end := 4 + int(binary.BigEndian.Uint16(options[2:])); end <= len(options) {
			return binary.BigEndian.Uint16(options), options[4:end], options[end:], true
		}
	}
	return 0, nil, nil, false
}

// MaxAnswer returns the maximum size in bytes of an answer to a client that sent this OPT record.
func (o *OPT) MaxAnswer(tcp bool) int {
	if tcp {
		return MaxSize
	}
	return max(minUDP, int(o.Size))
}
