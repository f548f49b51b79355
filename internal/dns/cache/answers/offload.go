package answers

import "github.com/neardns/neardns/internal/dns/msg"

// The states of Entry.offload. The kernel may serve an entry in the store's stead, until a time that is known when it is offloaded.
const (
	offloadNone    = 0 // no hit that the kernel could have served
	offloadHit     = 1 // one such hit
	offloadOffered = 2 // offered for offload
	offloadUntil   = 3 // this and above: offloaded until that many nanoseconds less offloadUntil on the store's clock
)

// ShouldOffer counts a hit that the kernel could have served, and reports whether to offer the entry for offload: at the second hit, if the
// entry is marked at the first, and then not before Decline or before the time for which it was offloaded is over.
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

// Decline ends an offer: the next hit makes another.
func (e *Entry) Decline() { e.offload.Store(offloadHit) }

// isOffloaded reports whether the entry was offloaded and not revoked, even if its time is over.
func (e *Entry) isOffloaded() bool { return e.offload.Load() >= offloadUntil }

// Mark marks the entry as watched by the store's user, and reports whether it was not marked before. The mark means nothing to the store.
// An entry that replaces this one has no mark.
func (e *Entry) Mark() bool { return e.marked.CompareAndSwap(false, true) }

// Unmark removes the mark.
func (e *Entry) Unmark() { e.marked.Store(false) }

// Marked reports whether the entry is marked.
func (e *Entry) Marked() bool { return e.marked.Load() }

// inherit takes over the use counts of the entry that e replaces. Only the old answer was offloaded or offered: e is offered at its first
// hit.
func (e *Entry) inherit(old *Entry) {
	e.uses.Store(old.uses.Load())
	e.offload.Store(min(old.offload.Load(), offloadHit))
}

// Key is the key of the queries that the entry answers.
func (e *Entry) Key() msg.Key {
	question, _ := msg.Question(e.blob) // fill has read it already
	var k msg.Key
	k.SetFlags([]byte(question), e.flags)
	return k
}

// Offload calls push with the entries of e's key, e among them, and notes until when e is offloaded. If ok is false, e is as before its
// offer. If e is no longer stored, push is not called. Meanwhile no entry of the key can be put or removed: push must be quick, and must
// not call the store.
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

// OnRevoke sets a function to call for each offloaded entry before the kernel must stop serving it: because it is replaced or removed, or
// the store gets another answer with its key. A lock of the store is held meanwhile: f must be quick, and must not call the store. nil:
// none is called.
func (s *Store) OnRevoke(f func(*Entry)) {
	if f == nil {
		s.onRevoke.Store(nil)
		return
	}
	s.onRevoke.Store(&f)
}

// revoke is called with the shard's lock held.
func (s *Store) revoke(e *Entry) {
	if !e.isOffloaded() {
		return
	}
	if f := s.onRevoke.Load(); f != nil {
		(*f)(e)
	}
	e.Decline()
}
