// Package mirror looks up the answers to queries that pods send to kube-dns, so that the kernel program can answer the next such query: the
// program lets them pass and mirrors them to the agent.
//
// It decides which mirrored queries are looked up, and how many at a time. It never makes the reader of mirrored queries wait, its memory
// is bounded whatever pods send, and one pod cannot take the slots of all others.
//
// Failure policy: a query without a free slot is dropped. Its pod still gets its answer from kube-dns.
package mirror

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/neardns/neardns/internal/dns/msg"
)

const (
	// maxSights is how many queries are remembered. Of queries with the same index, the last one is.
	maxSights = 8192
	// A query that comes a second time within sightTime is looked up. A name that is queried only once costs kube-dns no more than it would
	// without the agent.
	sightTime = time.Minute
	// pause is the least time between two fetches of one query: longer than the refresh takes that the first fetch began.
	pause = 100 * time.Millisecond
	// maxFetches bounds the fetches under way at one time, maxLinkFetches those for one pod.
	maxFetches     = 128
	maxLinkFetches = 32
	// fetches is how often one query is looked up: the first fetch caches the entry, and two more hits make it ripe for offload
	// (answers.Entry.ShouldOffer).
	fetches = 3
)

// Listener takes mirrored queries. One goroutine calls Hear; the other methods may be called at the same time.
type Listener struct {
	fetch func(message []byte) error
	seed  maphash.Seed
	seen  [maxSights]sight // only Hear uses it

	mu    sync.Mutex // guards the fields below
	links map[int]int
	busy  map[uint64]struct{}
	work  sync.WaitGroup
	heard Counts
}

// sight has the times when the kernel program last mirrored a query, and when the agent last fetched its answer.
type sight struct {
	question  uint64
	at, fetch time.Time
}

// Counts are the mirrored queries by outcome. Each query is in one of them.
type Counts struct {
	First   uint64 // the first one within a minute: not looked up
	Fetched uint64 // looked up
	Pending uint64 // the same query was being looked up, or had just been
	Dropped uint64 // no slot was free
}

// New makes a listener. fetch looks an answer up in the cache, forwards the query on a miss, and returns when there is an answer or there
// will be none. Several goroutines call it at the same time.
func New(fetch func(message []byte) error) *Listener {
	return &Listener{fetch: fetch, seed: maphash.MakeSeed(), links: map[int]int{}, busy: map[uint64]struct{}{}}
}

// Hear takes a query that came from a pod's link. It never waits, and does not keep message.
func (l *Listener) Hear(link int, message []byte, now time.Time) {
	question, ok := msg.Question(message)
	if !ok {
		return
	}
	id := l.id(question)
	s := &l.seen[id%maxSights]
	if s.question != id || now.Sub(s.at) > sightTime {
		*s = sight{question: id, at: now}
		l.count(func(c *Counts) { c.First++ })
		return
	}
	s.at = now
	if now.Sub(s.fetch) < pause {
		l.count(func(c *Counts) { c.Pending++ })
		return
	}
	if !l.begin(link, id) {
		return
	}
	s.fetch = now
	m := make([]byte, len(message))
	copy(m, message)
	l.work.Go(func() {
		defer l.end(link, id)
		for range fetches {
			if l.fetch(m) != nil {
				return // the pod gets its answer or error from kube-dns
			}
		}
	})
}

// begin takes a slot, and reports whether one was free.
func (l *Listener) begin(link int, id uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, twice := l.busy[id]; twice {
		l.heard.Pending++
		return false
	}
	if len(l.busy) >= maxFetches || l.links[link] >= maxLinkFetches {
		l.heard.Dropped++
		return false
	}
	l.busy[id] = struct{}{}
	l.links[link]++
	l.heard.Fetched++
	return true
}

func (l *Listener) end(link int, id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.busy, id)
	if l.links[link]--; l.links[link] == 0 {
		delete(l.links, link)
	}
}

func (l *Listener) count(add func(*Counts)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	add(&l.heard)
}

// Wait returns when no fetch is under way. Hear must not be called meanwhile.
func (l *Listener) Wait() { l.work.Wait() }

// Counts returns the counts so far.
func (l *Listener) Counts() Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard
}

// id identifies a question section, whatever case its name is in. Pods do not know the seed, so they cannot choose queries with the same
// index.
func (l *Listener) id(section []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(l.seed)
	for _, c := range section {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		_ = h.WriteByte(c) // never fails
	}
	return h.Sum64()
}
