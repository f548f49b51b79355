package answers

import (
	"sync"

	"github.com/neardns/neardns/internal/dns/msg"
)

// A space has sixteen shards, each with a lock. That is enough for the cores of a node, because a lookup holds a lock for some tens of
// nanoseconds.
const (
	shardBits  = 4
	shardCount = 1 << shardBits
)

// shard is a part of a space with a lock of its own.
//
// Eviction is S3-FIFO (Yang et al., SOSP 2023). A new entry goes into a small queue, which eviction cuts to a tenth of the entries. If the
// entry is used there, it moves on to the main queue, and stays as long as it is used. So a flood of names that are queried once passes
// through the small queue and evicts nothing else. The hashes of entries that were evicted from the small queue are remembered for a
// while: such an entry goes to the main queue when it is stored again.
type shard struct {
	mu    sync.RWMutex // guards all below, and the entries' lists
	index [classes]map[uint64]*Entry
	queue [classes]struct{ small, main list }
	ghost [classes]ghosts
}

// list is a queue of entries: push adds at the front, eviction takes from the back. The zero value is empty.
type list struct {
	front, back *Entry
	n           int
}

func (l *list) push(e *Entry) {
	e.list, e.prev, e.next = l, nil, l.front
	if l.front != nil {
		l.front.prev = e
	} else {
		l.back = e
	}
	l.front = e
	l.n++
}

func (l *list) remove(e *Entry) {
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		l.front = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		l.back = e.prev
	}
	e.list, e.prev, e.next = nil, nil, nil
	l.n--
}

// ghosts remembers hashes of evicted entries in a table. A new hash overwrites an older one at the same place.
type ghosts struct{ table []uint32 }

const minGhosts = 32

func (g *ghosts) add(hash uint64, entries int) {
	if len(g.table) < entries { // grow to the number of entries, rounded up to a power of two
		size := minGhosts
		for size < entries {
			size *= 2
		}
		g.table = make([]uint32, size)
	}
	g.table[hash%uint64(len(g.table))] = uint32(hash>>24) | 1
}

func (g *ghosts) take(hash uint64) bool {
	if len(g.table) == 0 {
		return false
	}
	at := &g.table[hash%uint64(len(g.table))]
	if *at != uint32(hash>>24)|1 {
		return false
	}
	*at = 0
	return true
}

// find returns the entries of a key, of each class at most one. The shard's lock is held; the entries themselves are read without it.
func (sh *shard) find(k *msg.Key, hash uint64) (success, denial *Entry) {
	if e := sh.index[Success][hash]; e != nil && e.matches(k) {
		success = e
	}
	if e := sh.index[Denial][hash]; e != nil && e.matches(k) {
		denial = e
	}
	return success, denial
}

func (sh *shard) put(sp *Space, e *Entry, proven bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.index[e.class] == nil {
		sh.index[e.class] = map[uint64]*Entry{}
	}
	q := &sh.queue[e.class]
	to := &q.small
	if sh.ghost[e.class].take(e.hash) || proven {
		to = &q.main
	}
	for _, index := range sh.index {
		if old := index[e.hash]; old != nil {
			sp.store.revoke(old)
		}
	}
	if old := sh.index[e.class][e.hash]; old != nil {
		if old.list == &q.main || old.uses.Load() > 0 {
			to = &q.main
		}
		e.inherit(old)
		e.turn.Store(old.turn.Load())
		if old.Left(Instant(e.stored)) > 0 { // refreshed before it expired: keep its popularity
			e.heat.Store(old.heat.Load())
		}
		sh.unlink(sp, old)
	}
	sh.index[e.class][e.hash] = e
	to.push(e)
	sp.account(e, 1)
}

// unlink removes an entry from its queue and from the counts, but not from the index.
func (sh *shard) unlink(sp *Space, e *Entry) {
	sp.store.revoke(e)
	e.list.remove(e)
	sp.account(e, -1)
}

func (sh *shard) remove(sp *Space, e *Entry) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e.list == nil || sh.index[e.class][e.hash] != e {
		return false
	}
	sh.delete(sp, e)
	return true
}

func (sh *shard) delete(sp *Space, e *Entry) {
	delete(sh.index[e.class], e.hash)
	sh.unlink(sp, e)
}

// laps is the maximum of entries that one eviction looks at. It limits how long the lock is held if all entries are in use.
const laps = 64

// evict removes one entry of the class, and reports whether it did. With onlyNew it removes one only if the small queue has more than a
// tenth of the entries.
func (sh *shard) evict(sp *Space, c Class, now Instant, onlyNew bool) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	q := &sh.queue[c]
	for range laps {
		if q.small.n == 0 && q.main.n == 0 {
			return false
		}
		if q.small.n > 0 && (q.main.n == 0 || q.small.n*10 > q.small.n+q.main.n) {
			e := q.small.back
			if e.uses.Load() == 0 || sp.dead(e, now) {
				sh.ghost[c].add(e.hash, q.small.n+q.main.n)
				sh.delete(sp, e)
				return true
			}
			q.small.remove(e)
			e.uses.Store(0)
			q.main.push(e)
			continue
		}
		if onlyNew {
			return false
		}
		e := q.main.back
		n := e.uses.Load()
		if n == 0 || sp.dead(e, now) {
			sh.delete(sp, e)
			return true
		}
		e.uses.Store(n - 1)
		q.main.remove(e)
		q.main.push(e)
	}
	// All the entries that were looked at are in use. Without onlyNew, one must go nevertheless.
	if onlyNew {
		return false
	}
	e := q.main.back
	if e == nil {
		e = q.small.back
	}
	sh.delete(sp, e)
	return true
}

// drop removes the entries that unwanted reports.
func (sh *shard) drop(sp *Space, unwanted func(*Entry) bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for c := range classes {
		for _, e := range sh.index[c] {
			if unwanted(e) {
				sh.delete(sp, e)
				sp.store.puts.Add(1)
			}
		}
		if len(sh.index[c]) == 0 {
			// A Go map does not shrink, so replace it.
			sh.index[c], sh.ghost[c] = nil, ghosts{}
		}
	}
}

// entries appends the entries of a class, each queue in the order of its eviction, and for each entry whether it is in the main queue.
func (sh *shard) entries(c Class, out []*Entry, main []bool) ([]*Entry, []bool) {
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	q := &sh.queue[c]
	for e := q.small.back; e != nil; e = e.prev {
		out, main = append(out, e), append(main, false)
	}
	for e := q.main.back; e != nil; e = e.prev {
		out, main = append(out, e), append(main, true)
	}
	return out, main
}
