package msg

import "encoding/binary"

// DataAfterTTL is the number of bytes from the offset of a record's TTL to that of its data (RFC 1035, section 4.1.3).
const DataAfterTTL = 6

// Record is a resource record in a message: its type and the offsets of its parts.
type Record struct {
	Type            uint16
	Owner, TTL, End uint16
}

// ReadRecord reads the record at an offset of a message of at most MaxSize bytes. It returns false if the message ends before the record.
func ReadRecord(m []byte, off int) (r Record, ok bool) {
	at, ok := skipName(m, off)
	if !ok || at+10 > len(m) {
		return r, false
	}
	end := at + 10 + int(binary.BigEndian.Uint16(m[at+8:]))
	return Record{Type: binary.BigEndian.Uint16(m[at:]), Owner: uint16(off), TTL: uint16(at + 4), End: uint16(end)}, end <= len(m)
}

// IsOPT reports whether the record is an OPT record.
func (r Record) IsOPT() bool { return r.Type == typeOPT }

// IsAddress reports whether the record is an IPv4 or IPv6 address.
func (r Record) IsAddress() bool {
	size := r.End - r.TTL - DataAfterTTL
	return r.Type == TypeA && size == 4 || r.Type == TypeAAAA && size == 16
}

// SameSet reports whether two records have the same owner, type and class. Owners are equal if their bytes are, or if the second is a
// compression pointer to the first (RFC 1035, section 4.1.4); otherwise they count as different. A pointer reaches only the first 16 KiB,
// so none equals 0xc000 plus a later offset.
func SameSet(m []byte, first, second Record) bool {
	if string(m[first.TTL-typeClass:first.TTL]) != string(m[second.TTL-typeClass:second.TTL]) {
		return false
	}
	one, two := m[first.Owner:first.TTL-typeClass], m[second.Owner:second.TTL-typeClass]
	return string(one) == string(two) || len(two) == 2 && int(binary.BigEndian.Uint16(two)) == 0xc000+int(first.Owner)
}
