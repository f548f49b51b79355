// Package offload chooses which cache entries the kernel program serves, pushes them, and revokes them before they change.
//
// It guarantees that the kernel never serves an entry that the fast path would not serve at that moment, nor one that the store has
// replaced or dropped. A query never waits for it.
//
// On failure: the agent answers what cannot be offloaded. If the kernel does not revoke an entry, all entries are revoked, and nothing is
// offloaded until the next Begin.
package offload

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/msg"
)

// MaxTime is how long an entry is offloaded at most. If the agent dies, no one can revoke its entries, so the kernel program serves them
// for at most this long (D-070).
const MaxTime = 30 * time.Second

const (
	maxOffers = 256             // waiting offers; more are declined, and come again with the next hit
	pollEvery = 5 * time.Second // the period of reading the kernel's hits while an entry is offloaded
	sample    = 16              // how many offloaded entries evictOne compares
)

// Item is an entry as the kernel gets it.
type Item struct {
	Key   *msg.Key
	Entry *answers.Entry
	// Expires is when the entry's TTL ends, and Until when the kernel stops serving it, by the clock of Kernel.Now.
	Expires, Until time.Duration
	Rotate         bool   // each answer begins with another address of the set
	Size           uint16 // the largest UDP answer in bytes for a client that allows more, and the size in its OPT
}

// Kernel serves offloaded entries. Its methods may be called concurrently.
type Kernel interface {
	Now() time.Duration // a clock that goes on while the machine sleeps
	Put(Item) error     // replaces the entry with the same key
	Remove(k *msg.Key) error
	Invalidate() error // revokes all entries
	// Hits calls each with the hits of an entry since Hits or HitsOf last reported them.
	Hits(each func(section string, hits uint64)) error
	// HitsOf returns the hits of one entry since Hits or HitsOf last reported them.
	HitsOf(k *msg.Key) (uint64, error)
}

// Offloader chooses the entries that are offloaded. Its methods may be called concurrently.
type Offloader struct {
	store *answers.Store
	max   int // entries offloaded at one time

	enabled atomic.Bool // offers are accepted now
	offers  chan offer

	epoch atomic.Uint64 // number of the Corefile server that answers
	built atomic.Uint64 // number of the Corefile server that is being built

	mu      sync.Mutex // guards the fields below; the store's locks come before it
	kernel  Kernel     // nil: kernel hits are off
	items   map[string]*item
	fault   error         // why nothing is offloaded although kernel hits are on
	offset  time.Duration // the kernel's clock minus the store's clock
	refused uint64        // entries that the kernel did not accept
}

// item is an offloaded entry.
type item struct {
	entry   *answers.Entry
	gap     time.Duration // as Source.Gap
	until   answers.Instant
	recent  uint64 // hits between the last two polls
	counted uint64 // hits that CountHits has counted since the last poll
}

// New returns an Offloader for the store's entries, max at one time. It offloads nothing before Begin.
func New(store *answers.Store, maxItems int) *Offloader {
	l := &Offloader{store: store, max: maxItems, offers: make(chan offer, maxOffers), items: map[string]*item{}}
	l.built.Store(1)
	return l
}

// Source is a server block that serves a space's entries. It offers each entry that it has just served.
type Source struct {
	offloader *Offloader
	epoch     uint64
	Space     *answers.Space
	// Gap is the longest pause between two hits after which the entry still counts as popular (the Corefile's prefetch duration).
	Gap    time.Duration
	Rotate bool
	// ValidUntil returns, without waiting, until when the server block would answer a query with e and send nothing upstream; ok is false
	// if not even now. success and denial are the entries stored for e's name and type, one of which is e; the other may be nil.
	ValidUntil func(e, success, denial *answers.Entry, now answers.Instant) (until answers.Instant, ok bool)
}

// offer is an entry that was just served, with the size limit of the answer.
type offer struct {
	source *Source
	entry  *answers.Entry
	size   uint16
}

// Source registers s with the Corefile server that is being built.
func (l *Offloader) Source(s Source) *Source {
	s.offloader, s.epoch = l, l.built.Load()
	return &s
}

// Enabled reports whether offers are accepted. It costs one atomic load.
func (s *Source) Enabled() bool { return s.offloader.enabled.Load() }

// Offer offers an entry that was just served to a client that the kernel program could have answered. It never waits and allocates nothing.
func (s *Source) Offer(e *answers.Entry, now answers.Instant, size uint16) {
	if !e.ShouldOffer(now) {
		return
	}
	select {
	case s.offloader.offers <- offer{s, e, size}:
	default:
		e.Decline()
	}
}

// Changed switches to the Corefile server that was just built: it revokes every entry that the previous server offloaded, and later
// offers of that server are ignored.
func (l *Offloader) Changed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epoch.Store(l.built.Load())
	l.built.Add(1)
	if l.kernel != nil {
		l.revokeAll()
	}
}

// Begin starts offloading to a kernel. It first revokes all entries that the kernel still has.
func (l *Offloader) Begin(k Kernel) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kernel, l.fault = k, nil
	l.offset = l.clockOffset()
	l.store.OnRevoke(l.revoke)
	if l.revokeAll(); l.fault == nil {
		l.enabled.Store(true)
	}
	return l.fault
}

// End revokes all entries, and offloads nothing until the next Begin.
func (l *Offloader) End() error {
	l.enabled.Store(false)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kernel == nil {
		return nil
	}
	l.revokeAll() // before the store stops calling revoke, so that an entry replaced meanwhile is revoked too
	l.store.OnRevoke(nil)
	l.kernel = nil
	return l.fault
}

// Leave stops offloading, but leaves the entries in the kernel until they expire. An agent calls it when it ends, so that hits continue.
func (l *Offloader) Leave() {
	l.enabled.Store(false)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kernel = nil
}

// State is the state of an Offloader.
type State struct {
	Items   int    // offloaded entries
	Refused uint64 // entries that the kernel did not accept
	Fault   error  // why nothing is offloaded although kernel hits are on
}

// State returns the current state.
func (l *Offloader) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return State{Items: len(l.items), Refused: l.refused, Fault: l.fault}
}

// Run accepts offers until ctx ends.
func (l *Offloader) Run(ctx context.Context) {
	var poll <-chan time.Time // nil while nothing is offloaded
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-l.offers:
			l.accept(o)
		case <-poll:
			poll = nil
			l.Poll()
		}
		if l.State().Items > 0 && poll == nil {
			poll = time.After(pollEvery)
		}
	}
}

// accept offloads an offered entry if it would still be served.
func (l *Offloader) accept(o offer) {
	o.source.Space.Offload(o.entry, func(success, denial *answers.Entry) (answers.Instant, bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		now := l.store.Now()
		until, ok := o.source.ValidUntil(o.entry, success, denial, now)
		if until = min(until, now+answers.Instant(MaxTime)); !ok || until <= now {
			return 0, false
		}
		if l.kernel == nil || l.fault != nil || o.source.epoch != l.epoch.Load() || !l.clocksAgree() {
			return 0, false
		}
		k := o.entry.Key()
		name := string(section(&k))
		// Mark an entry that cannot be offloaded as offloaded for a while, so that not every hit offers it again.
		again := min(until, now+answers.Instant(pollEvery))
		if l.items[name] == nil && len(l.items) >= l.max && !l.evictOne(now) {
			return again, true
		}
		at := l.kernel.Now()
		expires := o.entry.Stored() + answers.Instant(time.Duration(o.entry.TTL())*time.Second)
		err := l.kernel.Put(Item{Key: &k, Entry: o.entry, Rotate: o.source.Rotate, Size: o.size,
			Expires: at + time.Duration(expires-now), Until: at + time.Duration(until-now)})
		if err != nil {
			l.refused++
			return again, true // the agent goes on answering it
		}
		l.items[name] = &item{entry: o.entry, gap: o.source.Gap, until: until}
		return until, true
	})
}

// drift is how far the difference of the two clocks may move from what it was at Begin. answers.Keeper does not report a shorter sleep of
// the machine to the store.
const drift = time.Second

func (l *Offloader) clockOffset() time.Duration { return l.kernel.Now() - time.Duration(l.store.Now()) }

// clocksAgree reports whether the store's clock has caught up with the kernel's. The store notices a sleep of the machine some seconds
// after the kernel, and until then it takes entries for younger than they are. mu is held.
func (l *Offloader) clocksAgree() bool {
	now := l.clockOffset()
	if (now - l.offset).Abs() > drift {
		return false
	}
	l.offset = now
	return true
}

// section returns the question section of a key: only queries without DO and CD are answered from offloaded entries.
func section(k *msg.Key) []byte { return k.Bytes()[:len(k.Bytes())-1] }

// revoke implements answers.Store.OnRevoke.
func (l *Offloader) revoke(e *answers.Entry) {
	k := e.Key()
	l.mu.Lock()
	defer l.mu.Unlock()
	if one := l.items[string(section(&k))]; one != nil && one.entry == e {
		l.remove(&k)
	}
}

// remove revokes an entry; mu is held. It clears the entry's offload mark last: while the mark is set, a goroutine that replaces the
// entry waits for mu.
func (l *Offloader) remove(k *msg.Key) {
	var err error
	if l.kernel != nil {
		err = l.kernel.Remove(k)
	}
	name := string(section(k))
	l.items[name].entry.Decline()
	delete(l.items, name)
	if err != nil {
		l.revokeAll()
		l.fail(fmt.Errorf("revoke an entry: %w", err))
	}
}

// revokeAll revokes all entries, in the order of remove; mu is held.
func (l *Offloader) revokeAll() {
	err := l.kernel.Invalidate()
	for _, one := range l.items {
		one.entry.Decline()
	}
	clear(l.items)
	if err != nil {
		l.fail(fmt.Errorf("revoke all entries: %w", err))
	}
}

// fail stops offloading until the next Begin; mu is held.
func (l *Offloader) fail(err error) {
	l.enabled.Store(false)
	if l.fault == nil {
		l.fault = err
	}
}

// evictOne revokes one of up to 16 entries: an expired one, else the one with the fewest hits. It returns false if all of them are in
// use.
func (l *Offloader) evictOne(now answers.Instant) bool {
	var least *item
	left := sample
	for _, one := range l.items { // in no order
		if one.until <= now {
			least = one
			break
		}
		if least == nil || one.recent < least.recent {
			least = one
		}
		if left--; left == 0 {
			break
		}
	}
	if least == nil || least.until > now && least.recent > 1 {
		return false
	}
	k := least.entry.Key()
	l.remove(&k)
	return l.fault == nil
}

// Poll reads the kernel's hits and counts them in the store, so that used entries are kept and refreshed in time. It also revokes entries
// that the kernel no longer serves.
func (l *Offloader) Poll() {
	l.mu.Lock()
	k := l.kernel
	l.mu.Unlock()
	if k == nil {
		return
	}
	hits := map[string]uint64{}
	err := k.Hits(func(question string, n uint64) { hits[question] = n }) // without mu, because a query may wait for it
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.fail(fmt.Errorf("read hits: %w", err))
		return
	}
	now := l.store.Now()
	for name, one := range l.items {
		one.count(now, hits[name])
		one.recent, one.counted = hits[name]+one.counted, 0
		if one.until <= now {
			k := one.entry.Key()
			l.remove(&k)
		}
	}
}

// CountHits counts the kernel's hits of e in the store, if e is offloaded. Call it before a decision that depends on them.
func (s *Source) CountHits(e *answers.Entry) {
	l := s.offloader
	k := e.Key()
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.items[string(section(&k))]
	if one == nil || one.entry != e || l.kernel == nil {
		return
	}
	hits, err := l.kernel.HitsOf(&k)
	if err != nil {
		l.fail(fmt.Errorf("read hits: %w", err))
		return
	}
	one.count(l.store.Now(), hits)
	one.counted += hits
}

// count counts the kernel's hits in the store.
func (one *item) count(now answers.Instant, hits uint64) {
	if hits == 0 {
		return
	}
	for range min(hits, maxUses) {
		one.entry.Use()
	}
	if one.gap > 0 {
		one.entry.AddHits(now, one.gap, hits)
	}
}

// maxUses is the highest number of uses that the store's eviction counts for an entry (answers.maxUses).
const maxUses = 3
