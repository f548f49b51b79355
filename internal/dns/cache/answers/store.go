// Package answers stores DNS answers in wire form. An entry is the message with the offsets of the parts that differ between replies, so
// a hit copies the message and changes a few bytes.
//
// It keeps the store within its limits of bytes and of entries, and reports for each entry how long it is valid. It knows no sockets, no
// CoreDNS and no configuration. Its exported methods are safe for concurrent use unless a comment states otherwise.
//
// A message that it cannot parse is not stored. A snapshot that it cannot parse is refused as a whole.
package answers

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/neardns/neardns/internal/dns/msg"
)

// DefaultBytes is a store's default limit of memory. Two server blocks with 10,000 success entries and 10,000 denials each, of common
// size, take about 12 MB.
const DefaultBytes = 32 << 20

// Instant is a time on a store's clock, in nanoseconds since the store was made. The clock is monotonic: setting the machine's time does
// not change it.
type Instant int64

// Store holds the entries of all spaces, and limits their memory. It outlives the server that uses it.
type Store struct {
	start time.Time
	seed  maphash.Seed
	slept atomic.Int64 // nanoseconds of suspend, when the monotonic clock stood still
	limit atomic.Int64
	bytes atomic.Int64
	puts  atomic.Uint64 // see Changes

	onRevoke atomic.Pointer[func(*Entry)]

	mu     sync.Mutex // guards spaces' replacement
	spaces atomic.Pointer[map[uint64]*Space]
}

// NewStore returns an empty store of at most limit bytes; 0: DefaultBytes.
func NewStore(limit int64) *Store {
	s := &Store{start: time.Now(), seed: maphash.MakeSeed()}
	s.spaces.Store(&map[uint64]*Space{})
	s.SetLimit(limit)
	return s
}

// SetLimit changes the maximum memory of the store in bytes, which includes its own data about each entry. It evicts entries if they take
// more.
func (s *Store) SetLimit(limit int64) {
	if limit <= 0 {
		limit = DefaultBytes
	}
	s.limit.Store(limit)
	s.fit()
}

// Now returns the time on the store's clock.
func (s *Store) Now() Instant { return Instant(int64(time.Since(s.start)) + s.slept.Load()) }

// Slept puts the store's clock forward by d, the time of a suspend, when the monotonic clock stands still.
func (s *Store) Slept(d time.Duration) { s.slept.Add(int64(max(d, 0))) }

// Bytes returns the store's memory now, and its limit.
func (s *Store) Bytes() (now, limit int64) { return s.bytes.Load(), s.limit.Load() }

// Changes returns a count that grows with each entry that is put, removed or swept; the Keeper does not save an unchanged store. An
// eviction alone does not count.
func (s *Store) Changes() uint64 { return s.puts.Load() }

// Space returns the space with this id, which it makes if necessary. Server blocks whose answers may differ must use different ids; an id
// has the same meaning in the next process.
func (s *Store) Space(id uint64) *Space {
	if sp := (*s.spaces.Load())[id]; sp != nil {
		return sp
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.spaces.Load()
	if sp := old[id]; sp != nil {
		return sp
	}
	sp := &Space{id: id, store: s}
	next := maps.Clone(old)
	next[id] = sp
	s.spaces.Store(&next)
	return sp
}

// all returns the spaces, sorted by id.
func (s *Store) all() []*Space {
	return slices.SortedFunc(maps.Values(*s.spaces.Load()), func(a, b *Space) int { return cmp.Compare(a.id, b.id) })
}

// Find reports whether a space in use has an entry with the key, and the highest remaining TTL of these entries in seconds. It does not
// count as a use.
func (s *Store) Find(k *msg.Key) (left int, found bool) {
	now := s.Now()
	for _, sp := range *s.spaces.Load() {
		if sp.users.Load() <= 0 {
			continue
		}
		success, denial := sp.Peek(k)
		for _, e := range []*Entry{success, denial} {
			if e != nil && (!found || e.Left(now) > left) {
				left, found = e.Left(now), true
			}
		}
	}
	return left, found
}

// fit evicts entries until the store is within its limit. It evicts from the space and class with most bytes, so that a flood of names in
// one space evicts no entries of a smaller one.
func (s *Store) fit() (evicted [classes]int) {
	for s.bytes.Load() > s.limit.Load() {
		var most *Space
		class := Success
		for _, sp := range *s.spaces.Load() {
			for c := range classes {
				if most == nil || sp.bytes[c].Load() > most.bytes[class].Load() {
					most, class = sp, c
				}
			}
		}
		if most == nil || !most.evict(class) {
			return evicted // nothing is left to evict
		}
		evicted[class]++
	}
	return evicted
}

// Sweep removes entries that are older than their space allows (see SetBounds) and, unless no space is in use, all entries of spaces that
// are not in use. Such a space itself stays, 3 KB in size, because a configuration that does not serve yet may have it.
func (s *Store) Sweep() {
	now := s.Now()
	used := false
	for _, sp := range *s.spaces.Load() {
		used = used || sp.users.Load() > 0
	}
	for _, sp := range *s.spaces.Load() {
		unused := used && sp.users.Load() <= 0
		for i := range sp.shards {
			sp.shards[i].drop(sp, func(e *Entry) bool { return unused || sp.dead(e, now) })
		}
	}
}

// Space is the part of a store for server blocks whose answers are interchangeable.
type Space struct {
	id    uint64
	store *Store
	users atomic.Int64 // calls of Retain minus calls of Release

	caps   [classes]atomic.Int64
	keep   atomic.Int64 // nanoseconds
	count  [classes]atomic.Int64
	bytes  [classes]atomic.Int64
	cursor atomic.Uint32 // modulo shardCount: the shard at which eviction looked last

	shards [shardCount]shard
}

// ID returns the id with which Store.Space made the space.
func (sp *Space) ID() uint64 { return sp.id }

// Retain marks the space as in use until Release. A cache plugin calls it when its configuration begins to serve.
func (sp *Space) Retain() { sp.users.Add(1) }

// Release undoes one Retain. The entries stay, because the next configuration may use the same space.
func (sp *Space) Release() { sp.users.Add(-1) }

// SetBounds changes the space's limits, and evicts entries above them. entries is the maximum for each class; 0: limited only by the
// store's bytes. keep is how long after its TTL an entry is still useful.
func (sp *Space) SetBounds(entries [classes]int, keep time.Duration) {
	sp.keep.Store(int64(keep))
	for c := range classes {
		sp.caps[c].Store(int64(entries[c]))
		for sp.over(c) && sp.evict(c) {
		}
	}
}

// over reports whether the space has more entries of a class than its limit.
func (sp *Space) over(c Class) bool {
	limit := sp.caps[c].Load()
	return limit > 0 && sp.count[c].Load() > limit
}

// Len returns the number of entries of a class.
func (sp *Space) Len(c Class) int { return int(sp.count[c].Load()) }

// Get returns the entries of a key, at most one of each class; they may be stale. It counts as a use of both.
func (sp *Space) Get(k *msg.Key) (success, denial *Entry) {
	success, denial = sp.Peek(k)
	for _, e := range []*Entry{success, denial} {
		e.Use()
	}
	return success, denial
}

// Peek is Get that counts no use.
func (sp *Space) Peek(k *msg.Key) (success, denial *Entry) {
	h := k.Hash(sp.store.seed)
	sh := sp.shard(h)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	return sh.find(k, h)
}

// TryPeek is like Peek, but never waits: ok is false if a writer holds the lock or waits for it.
func (sp *Space) TryPeek(k *msg.Key) (success, denial *Entry, ok bool) {
	h := k.Hash(sp.store.seed)
	sh := sp.shard(h)
	if !sh.mu.TryRLock() {
		return nil, nil, false
	}
	defer sh.mu.RUnlock()
	success, denial = sh.find(k, h)
	return success, denial, true
}

// Put stores an entry in place of one with the same key and class, and evicts others if a limit is exceeded. An entry must be put only
// once. Put returns how many entries of each class were evicted, in all spaces.
func (sp *Space) Put(k *msg.Key, e *Entry) (evicted [classes]int) {
	e.stored, e.hash = int64(sp.store.Now()), k.Hash(sp.store.seed)
	return sp.put(e, false)
}

func (sp *Space) put(e *Entry, proven bool) (evicted [classes]int) {
	sh := sp.shard(e.hash)
	sh.put(sp, e, proven)
	sp.store.puts.Add(1)
	// Evict from the shard that grew, so that the shards stay of equal size.
	for sp.over(e.class) && (sh.evict(sp, e.class, Instant(e.stored), false) || sp.evict(e.class)) {
		evicted[e.class]++
	}
	for c, n := range sp.store.fit() {
		evicted[c] += n
	}
	return evicted
}

// Remove removes e, unless it was evicted or replaced.
func (sp *Space) Remove(e *Entry) {
	if sp.shard(e.hash).remove(sp, e) {
		sp.store.puts.Add(1)
	}
}

func (sp *Space) shard(hash uint64) *shard { return &sp.shards[hash>>(64-shardBits)] }

// account adds an entry to the counts (sign 1) or subtracts it (-1).
func (sp *Space) account(e *Entry, sign int64) {
	cost := sign * e.cost()
	sp.count[e.class].Add(sign)
	sp.bytes[e.class].Add(cost)
	sp.store.bytes.Add(cost)
}

// evict removes one entry of the class from the next shard that has one to spare: first from small queues that are too long, then from
// any queue. It reports whether it removed one.
func (sp *Space) evict(c Class) bool {
	now := sp.store.Now()
	for _, onlyNew := range []bool{true, false} {
		for range shardCount {
			if sp.shards[sp.cursor.Add(1)%shardCount].evict(sp, c, now, onlyNew) {
				return true
			}
		}
	}
	return false
}

// dead reports whether an entry expired longer ago than the space's limit, so that it is not served even as a stale one.
func (sp *Space) dead(e *Entry, now Instant) bool {
	return -int64(e.Left(now))*int64(time.Second) > sp.keep.Load()
}
