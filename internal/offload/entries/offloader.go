// Package entries chooses which cache entries the kernel program serves, pushes them, and revokes them before they change.
//
// It guarantees that between Begin and Leave the kernel serves no entry that the fast path would not serve at that moment, nor one that the
// store has replaced or dropped. Offering an entry never waits; a change of an offloaded entry waits until the entry is revoked.
//
// On failure: an entry that cannot be offloaded is served as without this package. If the kernel does not revoke an entry, all entries are
// revoked. After that, or if the kernel's hits cannot be read, no further entry is offloaded until the next Begin.
package entries

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/msg"
)

// MaxTime is the longest time for which an entry is offloaded. If the agent dies, its entries stay in the kernel, and the kernel program
// serves them for at most this long (D-070).
const MaxTime = 30 * time.Second

const (
	maxOffers = 256             // offers that wait for Run; beyond it, an offer is declined, and the entry's next hit makes a new one
	pollEvery = 5 * time.Second // how often Run reads the kernel's hit counts while any entry is offloaded
	sample    = 16              // how many offloaded entries evictOne compares at most
)

// Item is an entry as the kernel gets it.
type Item struct {
	Key   *msg.Key
	Entry *answers.Entry
	// Expires is when the entry's TTL ends, and Until when the kernel stops serving it, by the clock of Kernel.Now.
	Expires, Until time.Duration
	Rotate         bool   // each answer begins with another one of the entry's addresses
	Size           uint16 // limit in bytes of a UDP answer to an EDNS client; a larger size in its OPT is lowered to this limit
}

// Kernel serves offloaded entries. Its methods may be called concurrently.
type Kernel interface {
	Now() time.Duration // a clock that also counts while the machine sleeps
	Put(Item) error     // serves the item, instead of the offloaded entry with the same key
	Remove(k *msg.Key) error
	Invalidate() error // removes all entries
	// Hits calls each for every entry that was hit since Hits or HitsOf last reported its hits. section is the question section.
	Hits(each func(section string, hits uint64)) error
	// HitsOf returns one entry's hits since Hits or HitsOf last reported them.
	HitsOf(k *msg.Key) (uint64, error)
}

// Offloader chooses the entries that are offloaded. Its methods may be called concurrently.
type Offloader struct {
	store *answers.Store
	max   int // how many entries may be offloaded at one time

	enabled atomic.Bool // offers are accepted now
	offers  chan offer

	epoch atomic.Uint64 // number of the Corefile server that answers queries; offers of other servers are ignored
	built atomic.Uint64 // number of the Corefile server that is being built

	mu     sync.Mutex // guards the fields below; if both are needed, lock the store's shard before mu
	kernel Kernel     // nil: kernel hits are off
	items  map[string]*item
	fault  error         // why no further entry is offloaded although kernel hits are on
	offset time.Duration // Kernel.Now minus the store's clock, at Begin or when clocksAgree last returned true
}

// item is an offloaded entry.
type item struct {
	entry   *answers.Entry
	gap     time.Duration // as Source.Gap
	until   answers.Instant
	recent  uint64 // kernel hits between the last two calls of Poll
	counted uint64 // kernel hits that CountHits has read since the last Poll
}

// New returns an Offloader for the store's entries, at most maxItems at one time. It offloads nothing before Begin.
func New(store *answers.Store, maxItems int) *Offloader {
	l := &Offloader{store: store, max: maxItems, offers: make(chan offer, maxOffers), items: map[string]*item{}}
	l.built.Store(1)
	return l
}

// Source is a server block of the Corefile that serves the entries of one space of the store, and offers those that it has just served.
type Source struct {
	offloader *Offloader
	epoch     uint64
	Space     *answers.Space
	// Gap is the longest pause between two hits after which the entry still counts as popular (the duration of the Corefile's prefetch or
	// refresh). 0: hits do not count for popularity.
	Gap    time.Duration
	Rotate bool
	// ValidUntil returns the time until which the server block would answer a query with e and send nothing upstream. ok is false if it
	// would not do so even now. It does not wait. success and denial are the entries stored for e's key, one of which is e; the other entry
	// may be nil.
	ValidUntil func(e, success, denial *answers.Entry, now answers.Instant) (until answers.Instant, ok bool)
}

// offer is an entry that was just served. size is as in Item.
type offer struct {
	source *Source
	entry  *answers.Entry
	size   uint16
}

// Source returns s for use by the Corefile server that is being built. Its offers are ignored until Changed switches to that server.
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

// Changed switches to the Corefile server that was just built: it revokes every entry that the previous server offloaded, and ignores the
// previous server's later offers.
func (l *Offloader) Changed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epoch.Store(l.built.Load())
	l.built.Add(1)
	if l.kernel != nil {
		l.revokeAll()
	}
}

// Begin starts offloading to a kernel. It first revokes all entries that the kernel still has. If that fails, it returns the error, and
// nothing is offloaded.
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

// End revokes all entries, and offloads nothing until the next Begin. It returns the first fault since the last Begin.
func (l *Offloader) End() error {
	l.enabled.Store(false)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kernel == nil {
		return nil
	}
	l.revokeAll() // before OnRevoke(nil), so that an entry that the store replaces in between is revoked too
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
	Items int   // offloaded entries
	Fault error // why no further entry is offloaded although kernel hits are on
}

// State returns the current state.
func (l *Offloader) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return State{Items: len(l.items), Fault: l.fault}
}

// Run accepts offers, and calls Poll every pollEvery while entries are offloaded, until ctx ends.
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

// accept offloads an offered entry if its server block would still answer with it.
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
		name := string(k.Question())
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
			return again, true // the agent continues to answer with this entry
		}
		l.items[name] = &item{entry: o.entry, gap: o.source.Gap, until: until}
		return until, true
	})
}

// drift is how far the difference of the store's and the kernel's clock may change between two calls of clocksAgree. answers.Keeper does
// not correct the store's clock after a shorter sleep of the machine.
const drift = time.Second

func (l *Offloader) clockOffset() time.Duration { return l.kernel.Now() - time.Duration(l.store.Now()) }

// clocksAgree reports whether the store's clock has caught up with the kernel's after a sleep of the machine. The store's clock is
// corrected some time after the wake-up, and until then entries seem younger than they are. mu is held.
func (l *Offloader) clocksAgree() bool {
	now := l.clockOffset()
	if (now - l.offset).Abs() > drift {
		return false
	}
	l.offset = now
	return true
}

// revoke is the function that the Offloader passes to answers.Store.OnRevoke.
func (l *Offloader) revoke(e *answers.Entry) {
	k := e.Key()
	l.mu.Lock()
	defer l.mu.Unlock()
	if one := l.items[string(k.Question())]; one != nil && one.entry == e {
		l.remove(&k)
	}
}

// remove revokes an entry; mu is held. It calls Decline only after the kernel has removed the entry: before Decline, a goroutine that
// replaces the entry in the store calls revoke, and so waits for mu.
func (l *Offloader) remove(k *msg.Key) {
	var err error
	if l.kernel != nil {
		err = l.kernel.Remove(k)
	}
	name := string(k.Question())
	l.items[name].entry.Decline()
	delete(l.items, name)
	if err != nil {
		l.revokeAll()
		l.fail(fmt.Errorf("revoke an entry: %w", err))
	}
}

// revokeAll revokes all entries, first in the kernel and then by Decline, as remove does; mu is held.
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

// fail makes the Offloader refuse offers until the next Begin; mu is held. It revokes no entry.
func (l *Offloader) fail(err error) {
	l.enabled.Store(false)
	if l.fault == nil {
		l.fault = err
	}
}

// evictOne compares up to 16 entries and revokes one: an expired entry, else the one with the fewest recent hits. It returns false if each
// had more than one recent hit, or if revoking failed.
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

// Poll reads the kernel's hit counts and adds them to the store's, so that the store keeps and refreshes entries in use. It also removes
// entries whose time in the kernel is over.
func (l *Offloader) Poll() {
	l.mu.Lock()
	k := l.kernel
	l.mu.Unlock()
	if k == nil {
		return
	}
	hits := map[string]uint64{}
	err := k.Hits(func(question string, n uint64) { hits[question] = n }) // do not hold mu here: it takes long, and a query may wait for mu
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

// CountHits adds the kernel's hits of e since the last read to the store's count, if e is offloaded. Call it before a decision that depends
// on e's hits.
func (s *Source) CountHits(e *answers.Entry) {
	l := s.offloader
	k := e.Key()
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.items[string(k.Question())]
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

// count adds the kernel's hits of an entry to its uses and hits in the store.
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
