package msg

import (
	"encoding/binary"
	"hash/maphash"
)

// Key is the key of a cache entry: a question section in lower case, and the two bits on which its answer depends, DO (DNSSEC records
// wanted) and CD (unchecked data wanted). It contains no pointer, so it costs no allocation unless it escapes.
type Key struct {
	n     int // bytes of the question section
	bytes [MaxQuestion + 1]byte
}

const (
	keyDO = 1 << iota
	keyCD
	keyFlags
)

// Set sets the key to a question section and the two bits.
func (k *Key) Set(question []byte, do, cd bool) {
	flags := byte(0)
	if do {
		flags |= keyDO
	}
	if cd {
		flags |= keyCD
	}
	k.SetFlags(question, flags)
}

// SetFlags sets the key to a question section and the Flags of another key.
func (k *Key) SetFlags(question []byte, flags byte) {
	k.n = copy(k.bytes[:MaxQuestion], question)
	lower(k.bytes[:k.n-typeClass])
	k.bytes[k.n] = flags
}

// ValidFlags reports whether flags can be the Flags of a key.
func ValidFlags(flags byte) bool { return flags < keyFlags }

// Bytes returns the whole key as bytes. They are a part of the key and must not be changed.
func (k *Key) Bytes() []byte { return k.bytes[:k.n+1] }

// Question returns the question section in lower case, as a part of the key.
func (k *Key) Question() []byte { return k.bytes[:k.n] }

// Name returns the name in the question section, as a part of the key.
func (k *Key) Name() []byte { return k.bytes[:k.n-typeClass] }

// Type returns the record type in the question section.
func (k *Key) Type() uint16 { return binary.BigEndian.Uint16(k.bytes[k.n-typeClass:]) }

// Query returns a query for the key, with RD set. If DO is set, it has an OPT record with the maximum size of a UDP answer.
func (k *Key) Query(id, size uint16) []byte {
	h := Header{Id: id, Bits: BitRD << 8, Qdcount: 1}
	if k.Flags()&keyCD != 0 {
		h.Bits |= BitCD
	}
	opt := OPT{Present: k.Flags()&keyDO != 0, Size: size, Flags: bitDO}
	return opt.Append(append(h.Append(nil), k.Question()...), 0)
}

// Flags returns DO and CD in one byte. It is part of the cache snapshot's format.
func (k *Key) Flags() byte { return k.bytes[k.n] }

// Hash returns the key's hash.
func (k *Key) Hash(seed maphash.Seed) uint64 { return maphash.Bytes(seed, k.Bytes()) }
