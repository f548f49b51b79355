// Package mirror fetches the answers to mirrored queries into the cache, so that the kernel program can serve the next such query. A
// mirrored query is one that a pod sent to kube-dns and that the kernel program could not answer.
//
// It decides which queries are fetched, and how many at a time. It never blocks its caller, its memory is bounded, and one pod cannot
// take all slots.
//
// On failure: a query without a free slot is dropped. The pod still gets its answer from kube-dns.
package mirror

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/neardns/neardns/internal/dns/msg"
)

const (
	// maxSights is the size of the table of recent queries. A query overwrites an older one with the same index.
	maxSights = 8192
	// sightTime is the time within which a query must come twice to be fetched. Fetching each query would double the load that names
	// queried only once put on kube-dns.
	sightTime = time.Minute
	// pause is the shortest time between two fetches of one query. It is longer than the refresh that a fetch begins.
	pause = 100 * time.Millisecond
	// maxFetches limits the fetches under way, maxLinkFetches those for one pod's link.
	maxFetches     = 128
	maxLinkFetches = 32
	// fetches is how often a fetch looks the query up: the first time caches the entry, and two hits more make it eligible for offload
	// (answers.Entry.ShouldOffer).
	fetches = 3
)

// Listener receives mirrored queries. Only one goroutine may call Hear; the other methods are safe for concurrent use.
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

// Counts has the number of mirrored queries by outcome. Each query is counted once.
type Counts struct {
	First   uint64 // the first within sightTime, so not fetched
	Fetched uint64 // a fetch began
	Pending uint64 // a fetch of the same query was under way, or less than pause ago
	Dropped uint64 // no slot was free
}

// New makes a listener. fetch looks an answer up in the cache, forwards the query on a miss, and returns when there is an answer or there
// will be none. Several goroutines call it at the same time.
func New(fetch func(message []byte) error) *Listener {
	return &Listener{fetch: fetch, seed: maphash.MakeSeed(), links: map[int]int{}, busy: map[uint64]struct{}{}}
}

// Hear handles a query that the program mirrored at a pod's link. It never blocks, and does not keep message.
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

// begin takes a slot for a fetch, and returns false if there is none or the same query is being fetched.
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

// id returns a hash of a question section, ignoring case. Its seed is secret, so that pods cannot choose queries that overwrite others in
// the table.
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
