package msg

import "hash/maphash"

// Key is the key of a cache entry: a question section in lower case, and the two bits on which its answer depends, DO (DNSSEC records
// wanted) and CD (unchecked data wanted). It contains no pointer, so it costs no allocation unless it escapes.
type Key struct {
	n     int // bytes of the question section
	bytes [maxQuestion + 1]byte
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
	k.n = copy(k.bytes[:maxQuestion], question)
	lower(k.bytes[:k.n-4])
	k.bytes[k.n] = flags
}

// ValidFlags reports whether flags can be the Flags of a key.
func ValidFlags(flags byte) bool { return flags < keyFlags }

// Bytes returns the whole key as bytes. They are a part of the key and must not be changed.
func (k *Key) Bytes() []byte { return k.bytes[:k.n+1] }

// Section returns the question section in lower case, which must not be changed, and the two bits.
func (k *Key) Section() (q []byte, do, cd bool) {
	flags := k.bytes[k.n]
	return k.bytes[:k.n], flags&keyDO != 0, flags&keyCD != 0
}

// Flags returns DO and CD in one byte. It is part of the cache snapshot's format.
func (k *Key) Flags() byte { return k.bytes[k.n] }

// Hash returns the key's hash.
func (k *Key) Hash(seed maphash.Seed) uint64 { return maphash.Bytes(seed, k.Bytes()) }
