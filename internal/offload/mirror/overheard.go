// Package mirror chooses which questions the agent asks that pods ask somebody else: the kernel's program lets them pass and copies them
// to the agent, so that the next answer can be the program's own.
//
// It owns which copied questions are asked, and how many at a time. It must never make the reader of copies wait, hold more than it bounds
// whatever pods ask, or let one pod take the place of all others.
//
// Failure policy: a question that has no place is dropped. Its pod is answered by whom it asked.
package mirror

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/neardns/neardns/internal/dns/msg"
)

const (
	// sightsMost are questions that are remembered, the last one of those that fall together.
	sightsMost = 8192
	// sightTime is within which a question must come a second time to be worth an answer that is kept: a name that is asked once costs
	// kube-dns nothing more than without us.
	sightTime = time.Minute
	// pause is between two fetches of one question: longer than a refresh takes, which the first of them began.
	pause = 100 * time.Millisecond
	// fetchesMost are under way at one time, and linkMost of one pod's.
	fetchesMost = 128
	linkMost    = 32
	// fetches of one question: the answer is kept by the first, and lent when it was said twice more (wire.Entry.Ripe).
	fetches = 3
)

// Listener hears copied questions. Hear is called by one goroutine; its other methods may be called at the same time.
type Listener struct {
	fetch func(message []byte) error
	seed  maphash.Seed
	seen  [sightsMost]sight // Hear's own

	mu    sync.Mutex // guards the fields below
	links map[int]int
	busy  map[uint64]struct{}
	work  sync.WaitGroup
	heard Counts
}

// sight is when a question was heard last.
type sight struct {
	question  uint64
	at, fetch time.Time
}

// Counts are of questions that were heard, each in one of them.
type Counts struct {
	First   uint64 // not heard within a minute: not asked
	Fetched uint64 // asked
	Pending uint64 // the same question was being asked, or had just been
	Dropped uint64 // had no place
}

// New makes a listener. fetch has an answer looked up, and asked for where it is not kept; it returns when there is one, or none will be.
// It is called by several goroutines at the same time.
func New(fetch func(message []byte) error) *Listener {
	return &Listener{fetch: fetch, seed: maphash.MakeSeed(), links: map[int]int{}, busy: map[uint64]struct{}{}}
}

// Hear takes a question that came from a pod's link at some time. It never waits, and does not keep message.
func (l *Listener) Hear(link int, message []byte, now time.Time) {
	question, ok := msg.Question(message)
	if !ok {
		return
	}
	id := l.id(question)
	s := &l.seen[id%sightsMost]
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
				return // the pod hears of it from whom it asked
			}
		}
	})
}

// begin takes a place.
func (l *Listener) begin(link int, id uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, twice := l.busy[id]; twice {
		l.heard.Pending++
		return false
	}
	if len(l.busy) >= fetchesMost || l.links[link] >= linkMost {
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

// Wait returns when no fetch is under way. Nobody may call Hear meanwhile.
func (l *Listener) Wait() { l.work.Wait() }

// Counts returns them.
func (l *Listener) Counts() Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard
}

// id tells a question from others, in whatever case it is asked. Pods do not know the seed, so they cannot choose what falls together.
func (l *Listener) id(question []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(l.seed)
	for _, c := range question {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		_ = h.WriteByte(c) // never fails
	}
	return h.Sum64()
}
