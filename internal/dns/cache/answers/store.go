// Package answers stores DNS answers in wire form. An entry is the message together with the offsets at which a reply differs from it, so a
// hit copies bytes and patches a few.
//
// It guarantees that the store stays within its bounds of bytes and of entries, and that an answer is never given for longer than the
// caller allowed. It knows messages, not servers: no sockets, no CoreDNS, no configuration. Everything in it is safe for concurrent use
// unless its comment states otherwise.
//
// On failure nothing is stored: a message that it cannot parse is not stored, and a snapshot that it cannot parse is refused as a whole.
package answers

import (
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/neardns/neardns/internal/dns/msg"
)

// DefaultBytes is a store's default bound. Two server blocks full of 10,000 answers and 10,000 denials of
// common size take about 12 MB.
const DefaultBytes = 32 << 20

// Instant is a time on a store's clock: nanoseconds since the store was made. The clock is monotonic: setting the
// machine's time does not move it.
type Instant int64

// Store holds answers in spaces, one for each way in which answers come to be (see Space), and bounds the bytes of all.
// It outlives the server that uses it.
type Store struct {
	start time.Time
	seed  maphash.Seed
	slept atomic.Int64 // nanoseconds for which the monotonic clock stood still
	limit atomic.Int64
	bytes atomic.Int64
	puts  atomic.Uint64 // changes, by which a snapshot knows whether it is worth its while

	onRevoke atomic.Pointer[func(*Entry)]

	mu     sync.Mutex // guards spaces' replacement
	spaces atomic.Pointer[map[uint64]*Space]
}

// NewStore makes an empty store of at most limit bytes; 0: DefaultBytes.
func NewStore(limit int64) *Store {
	s := &Store{start: time.Now(), seed: maphash.MakeSeed()}
	s.spaces.Store(&map[uint64]*Space{})
	s.SetLimit(limit)
	return s
}

// SetLimit changes how many bytes the store may take, its bookkeeping for each entry included.
func (s *Store) SetLimit(limit int64) {
	if limit <= 0 {
		limit = DefaultBytes
	}
	s.limit.Store(limit)
	s.fit()
}

// Now is the time on the store's clock.
func (s *Store) Now() Instant { return Instant(int64(time.Since(s.start)) + s.slept.Load()) }

// Slept puts the store's clock forward: the monotonic clock stands still while the machine is suspended.
func (s *Store) Slept(d time.Duration) { s.slept.Add(int64(max(d, 0))) }

// Bytes is what the store takes, and what it may.
func (s *Store) Bytes() (now, limit int64) { return s.bytes.Load(), s.limit.Load() }

// Changes counts what was put in or taken out.
func (s *Store) Changes() uint64 { return s.puts.Load() }

// Space returns the space of one way to answer. A chain that answers differently must use another id, and an id means the same in the next
// process. The space is made if it is not there.
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

// all returns the spaces in a fixed order.
func (s *Store) all() []*Space {
	spaces := slices.Collect(maps.Values(*s.spaces.Load()))
	slices.SortFunc(spaces, func(a, b *Space) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
	return spaces
}

// Find reports whether a key has an entry in a space that a chain uses, and for how many seconds the one that lives longest is valid. It
// counts no use.
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

// fit evicts until the store is within its bytes: from the space that takes most, so that a flood in one space costs that space.
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

// Sweep drops entries that can never be served again, beyond their space's Keep, and spaces that no chain uses while others are used.
func (s *Store) Sweep() {
	now := s.Now()
	used := false
	for _, sp := range *s.spaces.Load() {
		used = used || sp.users.Load() > 0
		sp.sweep(now)
	}
	if !used {
		return
	}
	s.mu.Lock()
	next := maps.Clone(*s.spaces.Load())
	var gone []*Space
	maps.DeleteFunc(next, func(_ uint64, sp *Space) bool {
		if sp.users.Load() > 0 {
			return false
		}
		gone = append(gone, sp)
		return true
	})
	s.spaces.Store(&next)
	s.mu.Unlock()
	for _, sp := range gone {
		sp.close()
	}
}

// Bounds are a space's own.
type Bounds struct {
	Entries [classes]int  // by class; 0: as many as the store's bytes allow
	Keep    time.Duration // how long an entry is of use after its TTL
}

// Space is the part of a store that belongs to one way in which answers come to be.
type Space struct {
	id    uint64
	store *Store
	users atomic.Int64 // chains that lead here

	caps   [classes]atomic.Int64
	keep   atomic.Int64 // nanoseconds
	count  [classes]atomic.Int64
	bytes  [classes]atomic.Int64
	cursor atomic.Uint32 // the shard that eviction looks at next
	closed atomic.Bool

	shards [shardCount]shard
}

// ID is the argument of Store.Space.
func (sp *Space) ID() uint64 { return sp.id }

// Retain marks the space as in use until Release. A chain does so as long as it serves.
func (sp *Space) Retain() { sp.users.Add(1) }

// Release undoes one Retain. The entries stay, because the next chain may use the same space.
func (sp *Space) Release() { sp.users.Add(-1) }

// SetBounds changes the space's bounds and evicts what is beyond them.
func (sp *Space) SetBounds(b Bounds) {
	sp.keep.Store(int64(b.Keep))
	for c := range classes {
		sp.caps[c].Store(int64(b.Entries[c]))
		for sp.over(c) && sp.evict(c) {
		}
	}
}

// over reports whether there are more entries of a class than may be.
func (sp *Space) over(c Class) bool {
	limit := sp.caps[c].Load()
	return limit > 0 && sp.count[c].Load() > limit
}

// Len is how many entries of a class there are.
func (sp *Space) Len(c Class) int { return int(sp.count[c].Load()) }

// Get returns the entries of a key, stale or not, at most one of each class. They count as used.
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

// TryPeek is Peek that never waits: ok is false if a writer holds the lock.
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

// Put stores an entry in place of the one of its class with the same key, and evicts what it must. An entry belongs to one space once it
// was put. It returns how many entries of each class were evicted, from this space or another.
func (sp *Space) Put(k *msg.Key, e *Entry) (evicted [classes]int) {
	e.stored, e.hash = int64(sp.store.Now()), k.Hash(sp.store.seed)
	return sp.put(e, false)
}

func (sp *Space) put(e *Entry, proven bool) (evicted [classes]int) {
	if e.cost() > sp.store.limit.Load()/16 {
		return evicted // one answer must not push out all others
	}
	sh := sp.shard(e.hash)
	sh.put(sp, e, proven)
	sp.store.puts.Add(1)
	// Evict from the shard that grew, so that the shards stay of one size.
	for sp.over(e.class) && (sh.evict(sp, e.class, Instant(e.stored), false) || sp.evict(e.class)) {
		evicted[e.class]++
	}
	for c, n := range sp.store.fit() {
		evicted[c] += n
	}
	if sp.closed.Load() {
		sp.close() // an answer for a chain that is gone: it will not be looked up
	}
	return evicted
}

// Remove removes e if it is still stored.
func (sp *Space) Remove(e *Entry) {
	if sp.shard(e.hash).remove(sp, e) {
		sp.store.puts.Add(1)
	}
}

func (sp *Space) shard(hash uint64) *shard { return &sp.shards[hash>>(64-shardBits)] }

// account books an entry in (sign 1) or out (-1).
func (sp *Space) account(e *Entry, sign int64) {
	cost := sign * e.cost()
	sp.count[e.class].Add(sign)
	sp.bytes[e.class].Add(cost)
	sp.store.bytes.Add(cost)
}

// evict takes one entry out, from one shard after the other: one that is new, as long as any shard has more than its measure
// of them. It fails when there is none.
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

// dead reports whether an entry can never be an answer again.
func (sp *Space) dead(e *Entry, now Instant) bool {
	return -int64(e.Left(now))*int64(time.Second) > sp.keep.Load()
}

func (sp *Space) sweep(now Instant) {
	for i := range sp.shards {
		sp.shards[i].drop(sp, func(e *Entry) bool { return sp.dead(e, now) })
	}
}

func (sp *Space) close() {
	sp.closed.Store(true)
	for i := range sp.shards {
		sp.shards[i].drop(sp, func(*Entry) bool { return true })
	}
}
