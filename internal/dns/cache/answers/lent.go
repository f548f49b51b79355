package answers

import (
	"time"

	"github.com/neardns/neardns/internal/dns/msg"
)

// An entry may be lent: somebody outside of the store, the kernel, says it in the store's stead. What of that concerns an entry is in
// its use count, above the bits that eviction counts in and the mark, so that an entry takes no byte more for it: whether it was hit yet,
// whether it is being offered, or until when it is lent, on the store's clock in steps of lentStep.
const (
	usedMask = 1<<2 - 1
	markBit  = 1 << 2

	lentShift   = 3
	lentMask    = 1<<32 - 1<<lentShift
	lentNever   = 0 << lentShift // it had no hit that counts
	lentHit     = 1 << lentShift // it had one
	lentOffered = 2 << lentShift // whoever lends was told of it
	lentStep    = time.Second / 4
)

// Ripe counts a hit that could have been the borrower's, and reports whether the entry is to be offered to whoever lends: at the second
// hit, a marked one's at the first, and not again before Decline, or before the time is over for which it was lent.
func (e *Entry) Ripe(now Instant) bool {
	n := e.used.Load()
	switch state := n & lentMask; {
	case state == lentNever && n&markBit == 0:
		e.used.CompareAndSwap(n, n|lentHit) // one that fails is another's hit at the same time
		return false
	case state == lentNever, state == lentHit, state > lentOffered && lentAt(now) >= state:
		return e.used.CompareAndSwap(n, n&^lentMask|lentOffered)
	}
	return false
}

// Mark marks the entry, and reports whether it was not marked before. The mark means nothing to the store: it is its user's, and says
// that the entry is watched. What replaces the entry has no mark.
func (e *Entry) Mark() bool {
	for {
		n := e.used.Load()
		if n&markBit != 0 {
			return false
		}
		if e.used.CompareAndSwap(n, n|markBit) {
			return true
		}
	}
}

// Unmark takes the mark away.
func (e *Entry) Unmark() {
	for n := e.used.Load(); !e.used.CompareAndSwap(n, n&^markBit); n = e.used.Load() {
	}
}

// Marked reports whether Mark was called, and Unmark was not.
func (e *Entry) Marked() bool { return e.used.Load()&markBit != 0 }

// Decline undoes an offer: the next hit makes another.
func (e *Entry) Decline() { e.setLent(lentHit) }

// lentAt is an instant as it stands in the count. A store lives for less than the four years that there is room for.
func lentAt(t Instant) uint32 { return (uint32(int64(t)/int64(lentStep)) + 3) << lentShift }

func (e *Entry) setLent(state uint32) {
	for n := e.used.Load(); !e.used.CompareAndSwap(n, n&^lentMask|state); n = e.used.Load() {
	}
}

// lent reports whether the entry was lent and not taken back, be the time over or not.
func (e *Entry) lent() bool { return e.used.Load()&lentMask > lentOffered }

// uses is the count that eviction goes by.
func (e *Entry) uses() uint32 { return e.used.Load() & usedMask }

func (e *Entry) setUses(n uint32) {
	for old := e.used.Load(); !e.used.CompareAndSwap(old, old&^usedMask|n); old = e.used.Load() {
	}
}

// inherit takes over how the entry was used that e replaces. What was lent or offered was the old answer: e is offered at its first hit.
func (e *Entry) inherit(old *Entry) {
	n := old.used.Load()
	e.used.Store(n&usedMask | min(n&lentMask, lentHit))
}

// Key is the key of the entry's question.
func (e *Entry) Key() msg.Key {
	question, _ := msg.Question(e.blob) // fill has read it already
	var k msg.Key
	k.SetFlags([]byte(question), e.flags)
	return k
}

// Lend calls lend with what is known of e's question, e among it, and notes until when e is lent by its word; with ok false e is as
// before its offer. It calls nobody where e is kept no more. Meanwhile nothing about the question can be put or removed: lend must be
// quick, and must not call the store.
func (sp *Space) Lend(e *Entry, lend func(success, denial *Entry) (until Instant, ok bool)) {
	sh := sp.shard(e.hash)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	if sh.index[e.class][e.hash] != e {
		return
	}
	var known [classes]*Entry
	k := e.Key()
	known[Success], known[Denial] = sh.find(&k, e.hash)
	until, ok := lend(known[Success], known[Denial])
	if !ok {
		e.Decline()
		return
	}
	e.setLent(lentAt(until))
}

// OnReturn has f called for each entry that was lent, before it is said no more: it is replaced, removed, or another answer to its
// question comes beside it. A lock of the store is held meanwhile: f must be quick, and must not call the store. nil calls nobody.
func (s *Store) OnReturn(f func(*Entry)) {
	if f == nil {
		s.onReturn.Store(nil)
		return
	}
	s.onReturn.Store(&f)
}

// takeBack is called with the shard's lock held.
func (s *Store) takeBack(e *Entry) {
	if !e.lent() {
		return
	}
	if f := s.onReturn.Load(); f != nil {
		(*f)(e)
	}
	e.Decline()
}
