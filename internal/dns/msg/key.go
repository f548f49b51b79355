package msg

import "hash/maphash"

// Key is a question section in lower case and the two bits by which answers to it differ: DO (DNSSEC records wanted) and CD (unchecked
// data wanted). It is a value without pointers, so it costs no allocation where it does not escape.
type Key struct {
	n     int // bytes of the question section
	bytes [maxQuestion + 1]byte
}

const (
	keyDO = 1 << iota
	keyCD
	keyFlags
)

// Set makes the key of a question section.
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

// SetFlags makes the key of a question section and the flags of another key.
func (k *Key) SetFlags(question []byte, flags byte) {
	k.n = copy(k.bytes[:maxQuestion], question)
	lower(k.bytes[:k.n-4])
	k.bytes[k.n] = flags
}

// ValidFlags reports whether a key may have such flags.
func ValidFlags(flags byte) bool { return flags < keyFlags }

// Bytes are the key's bytes, different for different keys. They belong to the key.
func (k *Key) Bytes() []byte { return k.bytes[:k.n+1] }

// Section returns the question section in lower case, which belongs to the key, and the two bits.
func (k *Key) Section() (q []byte, do, cd bool) {
	flags := k.bytes[k.n]
	return k.bytes[:k.n], flags&keyDO != 0, flags&keyCD != 0
}

// Flags is the byte that holds DO and CD. It is part of the snapshot's format.
func (k *Key) Flags() byte { return k.bytes[k.n] }

// Hash returns the key's hash.
func (k *Key) Hash(seed maphash.Seed) uint64 { return maphash.Bytes(seed, k.Bytes()) }
