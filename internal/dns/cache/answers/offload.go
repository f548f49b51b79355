package answers

import "github.com/neardns/neardns/internal/dns/msg"

// The states of Entry.offload. An offloaded entry may be served by the kernel program until a time that is fixed when it is offloaded.
const (
	offloadNone    = 0 // no hit yet that the kernel program could have served
	offloadHit     = 1 // one such hit, or the last offer or offload has ended
	offloadOffered = 2 // offered for offload
	offloadUntil   = 3 // offloaded; the value minus offloadUntil is the end of the offload in ns on the store's clock
)

// ShouldOffer counts a hit that the kernel program could have served, and reports whether to offer the entry for offload now. That is at
// the second such hit, or at the first if the entry is marked or replaces one that had such a hit. After an offer it returns false until
// Decline is called or the offload's time is over.
func (e *Entry) ShouldOffer(now Instant) bool {
	switch state := e.offload.Load(); {
	case state == offloadNone && !e.marked.Load():
		e.offload.CompareAndSwap(state, offloadHit) // if it fails, another goroutine has counted a hit at the same time
		return false
	case state <= offloadHit, state >= offloadUntil && int64(now)+offloadUntil >= state:
		return e.offload.CompareAndSwap(state, offloadOffered)
	}
	return false
}

// Decline ends an offer, so that the next hit makes a new one.
func (e *Entry) Decline() { e.offload.Store(offloadHit) }

// isOffloaded reports whether the entry was offloaded and not revoked. The offload's time may be over.
func (e *Entry) isOffloaded() bool { return e.offload.Load() >= offloadUntil }

// Mark marks the entry as watched by the cache plugin, and reports whether it was unmarked before. An entry that replaces this one is
// unmarked.
func (e *Entry) Mark() bool { return e.marked.CompareAndSwap(false, true) }

// Unmark removes the mark.
func (e *Entry) Unmark() { e.marked.Store(false) }

// Marked reports whether the entry is marked.
func (e *Entry) Marked() bool { return e.marked.Load() }

// inherit copies the count of uses from the entry that e replaces. If that had a hit that the kernel program could have served, e is
// offered at its first such hit.
func (e *Entry) inherit(old *Entry) {
	e.uses.Store(old.uses.Load())
	e.offload.Store(min(old.offload.Load(), offloadHit))
}

// Key returns the key of the queries that the entry answers.
func (e *Entry) Key() msg.Key {
	question, _ := msg.Question(e.blob) // always valid, because fill has parsed it
	var k msg.Key
	k.SetFlags([]byte(question), e.flags)
	return k
}

// Offload calls push with the entries of e's key: e, and that of the other class or nil. If push returns ok, e counts as offloaded until
// the time that it returned; otherwise its offer ends as with Decline. If e is no longer stored, push is not called. The shard's lock is
// held during push: push must be quick, and must not call the store.
func (sp *Space) Offload(e *Entry, push func(success, denial *Entry) (until Instant, ok bool)) {
	sh := sp.shard(e.hash)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	if sh.index[e.class][e.hash] != e {
		return
	}
	k := e.Key()
	success, denial := sh.find(&k, e.hash)
	until, ok := push(success, denial)
	if !ok {
		e.Decline()
		return
	}
	e.offload.Store(int64(until) + offloadUntil)
}

// OnRevoke sets the function that is called for an offloaded entry that the kernel must stop serving, before the store changes: the entry
// is replaced or removed, or its key gets an entry of the other class. A lock of the store is held during the call: f must be quick, and
// must not call the store. nil removes the function.
func (s *Store) OnRevoke(f func(*Entry)) {
	if f == nil {
		s.onRevoke.Store(nil)
		return
	}
	s.onRevoke.Store(&f)
}

// revoke calls the OnRevoke function if e is offloaded, and ends the offload. The shard's lock is held.
func (s *Store) revoke(e *Entry) {
	if !e.isOffloaded() {
		return
	}
	if f := s.onRevoke.Load(); f != nil {
		(*f)(e)
	}
	e.Decline()
}
