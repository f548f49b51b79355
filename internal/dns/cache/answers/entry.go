package answers

import (
	"encoding/binary"
	"errors"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/neardns/neardns/internal/dns/msg"
)

// Class is the kind of answer that an entry has. As in CoreDNS's cache, each class has its own maximum of entries.
type Class uint8

// The classes, by CoreDNS's names.
const (
	Success Class = iota
	Denial        // the name or its data does not exist, or the server failed
	classes
)

// Entry is one cached answer. Its message never changes; its counters do.
type Entry struct {
	// blob is the message with ID 0, RD and CD clear, and the name in its question section in lower case. After it follow numbers of two
	// bytes each: the index of the first record of a set of addresses (see addresses), the number of these records, and the offsets of
	// all TTLs.
	blob  string
	size  uint16 // of the message
	flags byte   // of the key
	class Class

	uses    atomic.Uint32 // for eviction, at most maxUses: Use adds one, and eviction lowers it when it passes over the entry
	ttl     uint32        // seconds
	turn    atomic.Uint32 // number of rotated replies, made from this entry and from those that it replaced
	marked  atomic.Bool   // see Mark
	offload atomic.Int64  // see offload.go
	stored  int64         // nanoseconds on the store's clock
	hash    uint64        // of the key

	heat   atomic.Uint64 // time of the last hit in ms on the store's clock, and in the low hitsBits the count of hits
	failed atomic.Int64  // when a refresh last failed; see Failed
	denied atomic.Int64  // when the upstream first denied what the entry answers; 0: it has not; see Deny

	list       *list // guarded by the shard's lock, as prev and next are
	prev, next *Entry
}

// ErrMessage means that a message cannot be stored as an entry.
var ErrMessage = errors.New("not a DNS answer that can be stored")

// NewEntry makes an entry from the answer to a query with key k. message is a complete answer in wire form, with one record in its
// question section and without OPT record; the entry copies it. The entry is not in a store until Put.
func NewEntry(k *msg.Key, class Class, message []byte, ttl uint32) (*Entry, error) {
	e := &Entry{flags: k.Flags(), class: class, ttl: ttl}
	if err := e.fill(message); err != nil {
		return nil, err
	}
	if !e.matches(k) {
		return nil, ErrMessage // it answers another query
	}
	return e, nil
}

// fill parses the message and sets blob and size.
func (e *Entry) fill(m []byte) error {
	var some [64]msg.Record
	question, records, err := parse(m, some[:0])
	if err != nil {
		return err
	}
	head, end := msg.ReadHeader(m), msg.HeaderSize+len(question)
	first, count := addresses(m, records[:head.Ancount])
	head.Id, head.Bits = 0, head.Bits&keptBits|msg.BitQR<<8
	var k msg.Key
	k.SetFlags(question, e.flags)
	var b strings.Builder
	var raw [msg.HeaderSize]byte
	b.Grow(len(m) + setSize + 2*len(records))
	b.Write(head.Append(raw[:0]))
	b.Write(k.Question())
	b.Write(m[end:])
	b.Write([]byte{byte(first >> 8), byte(first), byte(count >> 8), byte(count)})
	for _, r := range records {
		b.Write([]byte{byte(r.TTL >> 8), byte(r.TTL)})
	}
	e.blob, e.size = b.String(), uint16(len(m))
	return nil
}

// keptBits are the bits of an answer's header that are stored as they came.
const keptBits = msg.BitAA<<8 | msg.BitRA | msg.BitAD | msg.RcodeMask

// setSize is the size of the two numbers in blob that describe the set of addresses, before the TTL offsets.
const setSize = 4

// addresses finds the first set of records in the answer section whose addresses can be rotated: consecutive records at equal distances
// with one owner, type (A or AAAA) and class. count is 0 if there is no such set.
func addresses(m []byte, answers []msg.Record) (first, count uint16) {
	for i, r := range answers {
		switch {
		case r.IsAddress():
			if count > 0 && msg.SameSet(m, answers[i-1], r) && (count == 1 || r.TTL-answers[i-1].TTL == answers[i-1].TTL-answers[i-2].TTL) {
				count++
				break
			}
			if count > 1 {
				return first, count
			}
			first, count = uint16(i), 1
		case count > 1:
			return first, count
		default:
			count = 0
		}
	}
	if count < 2 {
		return 0, 0
	}
	return first, count
}

// parse returns a message's question section, and appends its records. It fails unless the message is a complete answer to one query,
// without OPT record.
func parse(m []byte, records []msg.Record) (question []byte, _ []msg.Record, err error) {
	question, ok := msg.Question(m)
	if !ok || !msg.IsWholeAnswer(m) {
		return nil, nil, ErrMessage
	}
	off := msg.HeaderSize + len(question)
	for range msg.ReadHeader(m).Records() {
		r, ok := msg.ReadRecord(m, off)
		if !ok || r.IsOPT() {
			return nil, nil, ErrMessage
		}
		records, off = append(records, r), int(r.End)
	}
	if off != len(m) {
		return nil, nil, ErrMessage
	}
	return question, records, nil
}

// Reply has the parts of a reply that do not come from the entry.
type Reply struct {
	ID       uint16
	Question []byte // in wire form, in the client's case
	RD, CD   bool
	AD       bool // the client set AD or DO, and so understands AD (RFC 6840, sections 5.7 and 5.8)
	TTL      uint32
	Rotate   bool // begin each reply with another address of the set
}

// AppendReply appends the answer to this client's query, without OPT record. The question section in r must have the entry's name, type
// and class; the letters' case is the client's, also in owner names that are compression pointers to the name.
func (e *Entry) AppendReply(b []byte, r *Reply) []byte {
	start := len(b)
	b = append(b, e.blob[:e.size]...)
	m := b[start:]
	msg.Adapt(m, r.ID, r.RD, r.CD, r.AD)
	copy(m[msg.HeaderSize:], r.Question)
	for i := int(e.size) + setSize; i < len(e.blob); i += 2 {
		binary.BigEndian.PutUint32(m[e.number(i):], r.TTL)
	}
	if r.Rotate {
		e.rotate(m)
	}
	return b
}

// number reads two bytes of the blob.
func (e *Entry) number(at int) int { return int(e.blob[at])<<8 | int(e.blob[at+1]) }

// rotate writes the addresses of the set into m in a new order: each reply begins with the next address. Other records, for example CNAMEs,
// are not moved.
func (e *Entry) rotate(m []byte) {
	count := e.number(int(e.size) + 2)
	if count == 0 {
		return
	}
	from := int((e.turn.Add(1) - 1) % uint32(count))
	if from == 0 {
		return
	}
	places := int(e.size) + setSize + 2*e.number(int(e.size))
	begin, step := e.number(places)+msg.DataAfterTTL, e.number(places+2)-e.number(places)
	words := 1
	if e.blob[begin-1] == 16 {
		words = 4
	}
	source := begin + from*step
	for to := begin; to < begin+count*step; to += step {
		for w := range words { // faster than memmove for so few bytes
			s := e.blob[source+4*w:]
			binary.LittleEndian.PutUint32(m[to+4*w:], uint32(s[0])|uint32(s[1])<<8|uint32(s[2])<<16|uint32(s[3])<<24)
		}
		if source += step; source == begin+count*step {
			source = begin
		}
	}
}

// Size is how many bytes AppendReply appends.
func (e *Entry) Size() int { return int(e.size) }

// Rcode is the answer's response code.
func (e *Entry) Rcode() int { return msg.Rcode(e.blob) }

// Class is the entry's class.
func (e *Entry) Class() Class { return e.class }

// TTL is the time in seconds for which the answer is valid after it was stored.
func (e *Entry) TTL() uint32 { return e.ttl }

// Stored is the time when the answer was stored, on the store's clock.
func (e *Entry) Stored() Instant { return Instant(e.stored) }

// Left is the remaining TTL in seconds, rounded up as in CoreDNS; at zero or below, the entry is stale.
func (e *Entry) Left(now Instant) int {
	return int(e.ttl) - int((int64(now)-e.stored)/int64(time.Second))
}

// matches reports whether k is the key of the entry.
func (e *Entry) matches(k *msg.Key) bool {
	question := k.Question()
	end := msg.HeaderSize + len(question)
	return e.flags == k.Flags() && len(e.blob) >= end && e.blob[msg.HeaderSize:end] == string(question)
}

// hitsBits is the number of bits of heat that count hits; the other bits are enough for five hundred years in milliseconds.
const hitsBits = 20

// Hit counts a hit, and returns the number of hits up to and including it that had no pause longer than gap between them.
func (e *Entry) Hit(now Instant, gap time.Duration) int { return e.AddHits(now, gap, 1) }

// AddHits counts n hits, the last of them now. It returns what Hit does.
func (e *Entry) AddHits(now Instant, gap time.Duration, n uint64) int {
	hits := e.heatAt(now, gap, n)
	// A concurrent call may be lost: the count only measures popularity.
	e.heat.Store(uint64(now)/uint64(time.Millisecond)<<hitsBits | hits)
	return int(hits)
}

// Hits returns what Hit would return now, but does not count a hit.
func (e *Entry) Hits(now Instant, gap time.Duration) int { return int(e.heatAt(now, gap, 1)) }

// Heat returns the number of hits without a long pause, at most 2^20-1, and the time of the last hit, to the millisecond.
func (e *Entry) Heat() (hits int, last Instant) {
	heat := e.heat.Load()
	return int(heat & (1<<hitsBits - 1)), Instant(heat >> hitsBits * uint64(time.Millisecond))
}

// heatAt returns the number of hits if n more came at now.
func (e *Entry) heatAt(now Instant, gap time.Duration, n uint64) uint64 {
	ms, old := uint64(now)/uint64(time.Millisecond), e.heat.Load()
	hits := old & (1<<hitsBits - 1)
	if last := old >> hitsBits; hits > 0 && ms > last && ms-last > uint64(gap/time.Millisecond) {
		hits = 0
	}
	return min(hits+min(n, 1<<hitsBits-1), 1<<hitsBits-1)
}

// maxUses is the highest count of uses that eviction needs.
const maxUses = 3

// Use counts a use for eviction. It does nothing on a nil entry.
func (e *Entry) Use() {
	if e == nil {
		return
	}
	if n := e.uses.Load(); n < maxUses {
		e.uses.CompareAndSwap(n, n+1) // if it fails, another goroutine has just changed the count
	}
}

// Fail records that a refresh failed now. silent is true if the upstream sent no answer.
func (e *Entry) Fail(now Instant, silent bool) {
	at := int64(max(now, 1))
	if silent {
		at = -at
	}
	e.failed.Store(at)
}

// Failed returns when the last failed refresh was; ever is false if none has failed. silent is true if the upstream sent no answer to it.
func (e *Entry) Failed() (at Instant, silent, ever bool) {
	f := e.failed.Load()
	if f < 0 {
		return Instant(-f), true, true
	}
	return Instant(f), false, f != 0
}

// Deny records that the upstream denies what the entry answers, and returns when it first did so since the entry was stored.
func (e *Entry) Deny(now Instant) (first Instant) {
	e.denied.CompareAndSwap(0, int64(max(now, 1)))
	return Instant(e.denied.Load())
}

// Denied reports whether Deny was called.
func (e *Entry) Denied() bool { return e.denied.Load() != 0 }

// entryOverhead is the memory of an entry without its blob: its struct, rounded up to Go's size class, and its share of a map that is
// between half and seven eighths full, with key, pointer and control byte (Go 1.24's maps).
const entryOverhead = int64(unsafe.Sizeof(Entry{})+15)/16*16 + 28

// cost returns the memory of the entry, exact to a few percent; TestHonestBytes compares it with the runtime's figures.
func (e *Entry) cost() int64 { return entryOverhead + sizeClass(len(e.blob)) }

// sizeClass returns roughly what Go allocates for n bytes: multiples of 16 up to 256; above, steps of an eighth.
func sizeClass(n int) int64 {
	step := 16
	for limit := 256; n > limit && step < 8192; limit *= 2 {
		step *= 2
	}
	return int64((n + step - 1) / step * step)
}

// Layout is an entry's message with its offsets, for the kernel program, which answers from it.
type Layout struct {
	Bytes     string   // the message with ID 0, RD and CD clear, AD as the upstream set it, and its question section in lower case
	TTLs      []uint16 // the offsets of the TTLs of all records, in their order
	First     int      // index of the first record of the set of addresses that replies may rotate
	Addresses int      // number of records in the set, which are at equal distances; 0: there is no set
}

// Layout returns the entry's message and offsets.
func (e *Entry) Layout() Layout {
	k := Layout{Bytes: e.blob[:e.size], First: e.number(int(e.size)), Addresses: e.number(int(e.size) + 2)}
	for i := int(e.size) + setSize; i < len(e.blob); i += 2 {
		k.TTLs = append(k.TTLs, uint16(e.number(i)))
	}
	return k
}
