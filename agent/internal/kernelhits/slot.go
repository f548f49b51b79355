package kernelhits

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/neardns/neardns/agent/internal/wire"
)

// Bounds of hits.bpf.c, by the sizes of its types.
const (
	nameMost   = len(objectSlot{}.Name) * 8
	tailMost   = len(objectSlot{}.Tail) * 8
	ttlsMost   = len(objectSlot{}.TtlAt)
	headerSize = 12 // RFC 1035, section 4.1.1
)

// ErrUnfit is an answer that is not for the kernel: DO or CD, a name of more than 128 bytes, an answer of more than 1,216 bytes behind
// its question or with more than 80 records, or a response code other than NOERROR and NXDOMAIN.
var ErrUnfit = errors.New("not an answer for the kernel")

// Answer is one answer, and what the fast path knows of it.
type Answer struct {
	Group      uint32 // as in Serve
	Generation uint32 // Level.Generation from before the answer was found
	Key        *wire.Key
	Entry      *wire.Entry
	Expires    time.Duration // since boot, suspend included (Now): when Entry.Left becomes 0
	Until      time.Duration // since boot: from then on the question comes to the agent, to be fetched anew
	FixedTTL   uint32        // seconds that clients see; 0: what is left
	Rotate     bool          // as in wire.Reply
	Size       uint16        // the largest size of an EDNS answer that the configuration allows; 0: any
	Series     uint16        // of Counts; below SeriesMost
}

// SeriesMost is how many series of counts there are. The program has one more, for Test.
const SeriesMost = 255

// question is a key's question.
func question(k *wire.Key) (q []byte, plain bool) {
	b := k.Bytes()
	return b[:len(b)-1], b[len(b)-1] == 0
}

// fill makes a slot of an answer, but for its hash.
func (s *objectSlot) fill(a *Answer) error {
	q, plain := question(a.Key)
	message := a.Entry.Kept()
	if !plain || len(q) < 5 || len(q)-4 > nameMost || len(message.TTLs) > ttlsMost || a.Series >= SeriesMost && a.Group != trialGroup {
		return ErrUnfit
	}
	if rcode := a.Entry.Rcode(); rcode != 0 && rcode != 3 {
		return ErrUnfit
	}
	m := message.Bytes
	start := headerSize + len(q)
	tail := []byte(m[start:])
	if len(tail) == 0 || len(tail) > tailMost {
		return ErrUnfit
	}
	s.Group, s.Expires, s.Until, s.FixedTtl, s.EdnsMost, s.Series = a.Group, uint64(a.Expires), uint64(a.Until), a.FixedTTL, a.Size, a.Series
	if s.EdnsMost == 0 {
		s.EdnsMost = 1<<16 - 1
	}
	name := q[:len(q)-4]
	s.TypeClass = binary.LittleEndian.Uint32(q[len(q)-4:])
	s.NameSize, s.TailSize = uint16(len(name)), uint16(len(tail))
	words(s.Name[:], name)
	words(s.Tail[:], tail)
	s.Flags3, s.Flags4 = m[2], m[3]
	s.An, s.Ns, s.Ar = count(m[6:]), count(m[8:]), count(m[10:])
	s.Ttls = uint16(len(message.TTLs))
	for i, at := range message.TTLs {
		s.TtlAt[ttlsMost-1-i] = at - uint16(start)
	}
	if a.Rotate && message.Addresses > 1 {
		places := message.TTLs[message.First:]
		first := places[0] + 6 // behind TTL and length
		s.RotateAt, s.RotateCount, s.RotateStep = first-uint16(start), uint16(message.Addresses), places[1]-places[0]
		s.RotateWords = m[first-1] / 4
		if int(s.RotateAt)+(message.Addresses-1)*int(s.RotateStep) > tailMost-16 {
			return ErrUnfit // the program moves addresses where the longest has room
		}
	}
	return nil
}

// count reads a number of records as it stands.
func count(m string) uint16 { return uint16(m[0]) | uint16(m[1])<<8 }

// words writes bytes as words in the order in which they stand in memory, zeros behind them.
func words(to []uint64, b []byte) {
	clear(to)
	for i, c := range b {
		to[i/8] |= uint64(c) << (i % 8 * 8)
	}
}

// bytesOf undoes words.
func bytesOf(from []uint64, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(from[i/8] >> (i % 8 * 8))
	}
	return b
}

// hash is the program's of a slot's question.
func (s *objectSlot) hash(c *objectControl) uint64 {
	h := c.Seed ^ uint64(s.TypeClass) ^ uint64(s.Group)<<32
	for _, w := range s.Name[:(s.NameSize+7)/8] {
		h = (h ^ w) * c.Multiplier
		h ^= h >> 32
	}
	return h
}

// question is a slot's.
func (s *objectSlot) question() string {
	return string(binary.LittleEndian.AppendUint32(bytesOf(s.Name[:], int(s.NameSize)), s.TypeClass))
}
