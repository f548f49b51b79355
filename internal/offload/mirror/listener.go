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
	// maxSights is the size of Listener.seen, a hash table of recent queries. A query overwrites an older one with the same index.
	maxSights = 8192
	// sightTime is the time within which the same query must come twice before its answer is fetched. If each query was fetched, names that
	// pods query only once would load kube-dns twice.
	sightTime = time.Minute
	// pause is the shortest time between the starts of two fetches for the same query. It is meant to be longer than the refresh of a cache
	// entry that a fetch may begin.
	pause = 100 * time.Millisecond
	// maxFetches limits the concurrent fetches, and maxLinkFetches those for queries from one pod's link.
	maxFetches     = 128
	maxLinkFetches = 32
	// fetches is how often one fetch queries the cache: the first query caches the entry, and two hits more make it eligible for offload
	// (answers.Entry.ShouldOffer).
	fetches = 3
)

// Listener receives mirrored queries. Only one goroutine may call Hear; the other methods are safe for concurrent use.
type Listener struct {
	fetch func(message []byte) error // as in New
	seed  maphash.Seed
	seen  [maxSights]sight // recent queries, by id modulo maxSights; only Hear uses it

	mu    sync.Mutex          // guards the fields below
	links map[int]int         // number of running fetches by ifindex of the pod's link
	busy  map[uint64]struct{} // ids of the queries that are being fetched
	work  sync.WaitGroup
	heard Counts
}

// sight has a query's id and the time when the kernel program last mirrored the query.
type sight struct {
	question  uint64    // hash of the query's question section, see id
	at, fetch time.Time // fetch is when the last fetch began; zero if none did
}

// Counts has the number of mirrored queries by outcome. Each query with a readable question section is counted once.
type Counts struct {
	First   uint64 // Listener.seen had no record of the query from the last sightTime, so it was not fetched
	Fetched uint64 // a fetch began
	Pending uint64 // a fetch of the same query was under way, or had begun less than pause ago
	Dropped uint64 // as many fetches ran as maxFetches or maxLinkFetches allow
}

// New makes a listener. fetch must look the query up in the cache, forward it on a miss, and return an error if there is no answer. Several
// goroutines call fetch at the same time.
func New(fetch func(message []byte) error) *Listener {
	return &Listener{fetch: fetch, seed: maphash.MakeSeed(), links: map[int]int{}, busy: map[uint64]struct{}{}}
}

// Hear handles a query that the kernel program mirrored at the pod's link with ifindex link. It does not wait for the fetch, and does not
// keep message.
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

// begin registers a fetch, and returns false if too many are running or the same query is being fetched.
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

// Counts returns the counts since New.
func (l *Listener) Counts() Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard
}

// id returns a hash of a question section, ignoring case. Its seed is secret, so that a pod cannot choose queries that overwrite other
// pods' queries in Listener.seen.
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
