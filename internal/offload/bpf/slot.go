package bpf

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"unsafe"

	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/offload/entries"
)

// Limits of hits.bpf.c, which follow from the sizes of its types.
const (
	maxName = 128
	maxTTLs = 80
	maxTail = len(objectSlot{}.Data)*8 - maxName - maxTTLs*2
)

// ErrUnfit means that the kernel program cannot serve an answer: DO or CD is set, the name has more than 128 bytes, the question section is
// followed by nothing, by more than 1,216 bytes or by more than 80 records, or the response code is neither NOERROR nor NXDOMAIN. It is
// also returned if the last of several addresses to rotate begins less than 16 bytes before that limit, or if the series is invalid.
var ErrUnfit = errors.New("not an answer for the kernel")

// Answer is an item with what else the program needs.
type Answer struct {
	entries.Item        // a Size of 0 limits no answer
	FixedTTL     uint32 // the TTL in seconds that clients see; 0: the entry's remaining TTL
	Series       uint16 // index in Counts, below SeriesMost, except in Test
}

// oneGroup is the group of all answers and addresses: the program serves an answer at the addresses of its group only, and in the role
// `node` every server block answers at every address.
const oneGroup = 1

// SeriesMost is the number of series for which Counts returns hits. The program has one more series, for Test.
const SeriesMost = 255

// fill encodes an answer into a slot.
func (s *objectSlot) fill(a *Answer) error {
	message := a.Entry.Layout()
	if !s.setQuestion(a.Key) || len(message.TTLs) > maxTTLs || a.Series > SeriesMost {
		return ErrUnfit
	}
	if rcode := a.Entry.Rcode(); rcode != 0 && rcode != 3 {
		return ErrUnfit
	}
	m := message.Bytes
	start := msg.HeaderSize + len(a.Key.Question())
	tail := []byte(m[start:])
	if len(tail) == 0 || len(tail) > maxTail {
		return ErrUnfit
	}
	s.Expires, s.Until, s.FixedTtl, s.EdnsMost, s.Series = uint64(a.Expires), uint64(a.Until), a.FixedTTL, a.Size, a.Series
	if s.EdnsMost == 0 {
		s.EdnsMost = 1<<16 - 1
	}
	s.TailSize = uint16(len(tail))
	words(s.Data[wordsOf(a.Key.Name()):][:wordsOf(tail)], tail)
	h := msg.ReadHeader([]byte(m[:msg.HeaderSize]))
	s.Flags3, s.Flags4 = byte(h.Bits>>8), byte(h.Bits)
	s.An, s.Ns, s.Ar = bits.ReverseBytes16(h.Ancount), bits.ReverseBytes16(h.Nscount), bits.ReverseBytes16(h.Arcount) // as in m
	s.Ttls = uint8(len(message.TTLs))
	for i, at := range message.TTLs {
		at -= uint16(start)
		if i == 0 {
			s.FirstTtl = at
			continue
		}
		s.Data[s.ttlsAt()+(i-1)/4] |= uint64(at) << ((i - 1) % 4 * 16)
	}
	if a.Rotate && message.Addresses > 1 {
		places := message.TTLs[message.First:]
		first := places[0] + msg.DataAfterTTL
		s.RotateAt, s.RotateCount, s.RotateStep = first-uint16(start), uint8(message.Addresses), places[1]-places[0]
		s.RotateWords = m[first-1] / 4
		if s.lastAddress() > maxTail-16 {
			return ErrUnfit // the program needs room for 16 bytes at each rotated address, even an IPv4 one
		}
	}
	return nil
}

// setQuestion encodes a key's question section with its group. It returns false if the program cannot serve answers with this key.
func (s *objectSlot) setQuestion(k *msg.Key) bool {
	name := k.Name()
	if k.Flags() != 0 || len(name) > maxName {
		return false
	}
	s.Group, s.TypeClass, s.NameSize = oneGroup, binary.LittleEndian.Uint32(k.Question()[len(name):]), uint8(len(name))
	words(s.Data[:wordsOf(name)], name)
	return true
}

// ttlsAt returns the index in Data where the offsets of the TTLs begin.
func (s *objectSlot) ttlsAt() int { return (int(s.NameSize)+7)/8 + (int(s.TailSize)+7)/8 }

// lastAddress returns the offset of the last rotated address after the question section; 0 if nothing is rotated.
func (s *objectSlot) lastAddress() int {
	return int(s.RotateAt) + max(int(s.RotateCount)-1, 0)*int(s.RotateStep)
}

// small reports whether the answer in s fits into a small slot.
func (s *objectSlot) small() bool {
	const most = len(objectSmall{}.Data)
	return s.ttlsAt()+(int(s.Ttls)+2)/4 <= most && (int(s.NameSize)+7)/8*8+s.lastAddress() <= most*8-16
}

// memory returns the bytes of s as an element of the map of small slots or of large slots. A small slot has the same fields as a large one,
// with less Data.
func (s *objectSlot) memory(small bool) []byte {
	size := unsafe.Sizeof(*s)
	if small {
		size = unsafe.Sizeof(objectSmall{})
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(s)), size)
}

// wordsOf is the number of 64-bit words that b takes.
func wordsOf(b []byte) int { return (len(b) + 7) / 8 }

// words writes bytes into words in memory order, followed by zeros.
func words(to []uint64, b []byte) {
	clear(to)
	for i, c := range b {
		to[i/8] |= uint64(c) << (i % 8 * 8)
	}
}

// hash computes the hash of a slot's question section and group as the kernel program does.
func (s *objectSlot) hash(c *objectControl) uint64 {
	h := c.Seed ^ uint64(s.TypeClass) ^ uint64(s.Group)<<32
	for _, w := range s.Data[:(int(s.NameSize)+7)/8] {
		h = (h ^ w) * c.Multiplier
		h ^= h >> 32
	}
	return h
}
