package cache

import (
	"container/heap"
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"time"
	"weak"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/msg"
)

// ahead refreshes popular entries shortly before they expire, by a timer. So no client waits for such a name, and an entry is used for
// nearly all of its TTL.
//
// A credit bounds the cost: the upstream gets at most 1.1 times the queries that it would get if entries expired, plus one for each name
// that has just become unpopular, plus maxCredit. The credit counts tenths of a query. A query for a client earns one. A refresh costs
// ten, and earns eleven if clients went on for so long that an expired entry would have been fetched again.
//
// While no name is popular there is no timer.
type ahead struct {
	cache *Cache

	mu     sync.Mutex // guards the fields below, and no call is made under it
	due    dueNext
	timer  *time.Timer // nil: there never was one
	ended  bool
	credit int
	swept  answers.Instant // when makeRoom last looked
	cut    int             // early fetches that brought only what was left of an answer, less the others; 0 to 2 cutMany
	begun  int             // names that were watched
}

// The credit's terms, in tenths of a query.
const (
	missEarns   = 1
	fetchCosts  = 10
	sparedEarns = 11
	maxCredit   = 200
)

// How long before it expires an entry is fetched: a hundredth of its TTL, and at most leadUsual; earlier if the upstream is slow, up to
// 1/leadShare of the TTL. Times are rounded down to leadStep, so that many names wake the process at most forty times a second.
const (
	leadUsual = 100 * time.Millisecond
	leadShare = 11
	leadStep  = 25 * time.Millisecond
)

// From cutMany on, the upstream counts as a cache whose entries expire with ours, and only every tryAgain-th name is fetched early.
const (
	cutMany  = 3
	tryAgain = 16
)

// hotHits is how many hits within a TTL make a refresh nearly pay for itself: without it, the name costs one query for each TTL plus the
// time until the next hit, which is then an eighth of the TTL. Refreshes of colder names are paid from the savings of others.
const hotHits = 8

// roomEvery bounds the work of makeRoom in a flood of names.
const roomEvery = time.Second

// pauseKeeps is the weight of earlier measurements in the average pause between hits.
const pauseKeeps = 4

// coldAfter: a name without a hit for so many times its usual pause counts as cold. By chance that happens once in fifty cases (e^-4).
const coldAfter = 4

// watched is one popular name.
type watched struct {
	// Weak, so that evicted entries are freed: an answer may be large, and its end far away.
	entry  weak.Pointer[answers.Entry]
	ends   answers.Instant // the entry
	at     answers.Instant // when it is checked, and fetched
	series *series         // of the client
	hits   int             // of the entry, when it was stored
	pause  time.Duration   // between two hits, on average
	ttl    time.Duration   // the longest so far
	lapses answers.Instant // when the entry would have expired without refreshes
	took   time.Duration   // to fetch it
	ours   bool            // no client waited for the entry
	// The upstream is a cache whose own entry expires with ours, so the refresh comes when both have expired.
	shared bool
}

// add watches an entry that was marked.
func (h *ahead) add(e *answers.Entry, s *series) {
	w := &watched{entry: weak.Make(e), ends: ends(e), series: s, ttl: ttlOf(e), lapses: ends(e)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun++
	w.shared = h.cut >= cutMany && h.begun%tryAgain != 0
	h.push(w)
}

func ttlOf(e *answers.Entry) time.Duration { return time.Duration(e.TTL()) * time.Second }

func ends(e *answers.Entry) answers.Instant { return e.Stored() + answers.Instant(ttlOf(e)) }

// push is called with mu held. It watches no more names than the cache has entries.
func (h *ahead) push(w *watched) {
	if h.ended {
		if e := w.entry.Value(); e != nil {
			e.Unmark() // the next chain watches it
		}
		return
	}
	if len(h.due) >= h.cache.capacity[answers.Success]+h.cache.capacity[answers.Denial] && !h.makeRoom() {
		return
	}
	w.at = w.ends
	if !w.shared {
		w.at -= answers.Instant(min(max(min(w.ttl/100, leadUsual), 2*w.took), w.ttl/leadShare))
		w.at -= w.at % answers.Instant(leadStep)
	}
	heap.Push(&h.due, w)
	if h.due[0] == w {
		h.arm()
	}
}

// makeRoom drops entries that the store has evicted, at most once in roomEvery, and reports whether there were any. It is called with mu
// held.
func (h *ahead) makeRoom() bool {
	now := h.cache.store.Now()
	if time.Duration(now-h.swept) < roomEvery {
		return false
	}
	h.swept = now
	before := len(h.due)
	h.due = slices.DeleteFunc(h.due, func(w *watched) bool { return w.entry.Value() == nil })
	heap.Init(&h.due)
	return len(h.due) < before
}

// arm is called with mu held.
func (h *ahead) arm() {
	if len(h.due) == 0 {
		return
	}
	wait := time.Duration(h.due[0].at - h.cache.store.Now())
	if h.timer == nil {
		h.timer = time.AfterFunc(wait, h.fire)
		return
	}
	h.timer.Reset(wait)
}

// fire checks all names that are due.
func (h *ahead) fire() {
	now := h.cache.store.Now()
	var ready []*watched
	h.mu.Lock()
	for len(h.due) > 0 && h.due[0].at <= now {
		ready = append(ready, heap.Pop(&h.due).(*watched)) //nolint:errcheck // nothing else is in it
	}
	h.arm()
	h.mu.Unlock()
	for _, w := range ready {
		h.check(w, now)
	}
}

// check refreshes an entry if that is worth it. An entry that it drops is watched again when it is popular again.
func (h *ahead) check(w *watched, now answers.Instant) {
	c, e := h.cache, w.entry.Value()
	if e == nil {
		return // evicted
	}
	a, r, ok := queryOf(e)
	if !ok {
		return
	}
	if success, denial := c.space.Peek(&a.key); e != success && e != denial {
		return // evicted, or replaced
	}
	if c.source != nil {
		c.source.CountHits(e)
	}
	if !h.worth(w, e, now) || !c.mayRefresh(e, now, earlyRecheck) {
		return
	}
	f, _ := c.refresh(w.series.context(), nil, r, a, e, w.series)
	if f == nil {
		return // too many refreshes are in flight
	}
	go func() { // ends with the fetch
		<-f.done
		h.again(w, e, &a.key, now)
	}()
}

// queryOf makes the query that an entry answers.
func queryOf(e *answers.Entry) (a *query, r *dns.Msg, ok bool) {
	k := e.Key()
	q, do, cd := k.Section()
	name, end, err := dns.UnpackDomainName(q, 0)
	if err != nil || len(q)-end != 4 {
		return nil, nil, false // it did not come from a message
	}
	r = new(dns.Msg).SetQuestion(name, binary.BigEndian.Uint16(q[end:]))
	r.Question[0].Qclass, r.CheckingDisabled = binary.BigEndian.Uint16(q[end+2:]), cd
	if do {
		r.SetEdns0(ednsSize, true)
	}
	a = new(query)
	return a, r, a.read(r)
}

// context is the context of a client of the series, without the client. It lacks what a plugin before the cache put into one query's
// context (metadata).
func (s *series) context() context.Context {
	ctx := context.WithValue(context.Background(), dnsserver.Key{}, s.key.server)
	ctx = context.WithValue(ctx, dnsserver.LoopKey{}, 0)
	if s.key.view != "" {
		ctx = context.WithValue(ctx, dnsserver.ViewKey{}, s.key.view)
	}
	return ctx
}

// worth accounts for the last TTL, and reports whether the credit pays for another query.
func (h *ahead) worth(w *watched, e *answers.Entry, now answers.Instant) bool {
	all, last := e.Heat()
	hits := all - w.hits
	since := time.Duration(now - e.Stored())
	switch {
	case last <= e.Stored():
		hits = 0
	case hits <= 0: // there was a long gap, or it counts no further
		hits = all
	}
	if since >= w.ttl/2 && hits > 0 {
		// One hit less, because some names are popular only by chance.
		pause := since / time.Duration(max(1, hits-1))
		if w.pause == 0 {
			w.pause = pause
		}
		w.pause += (pause - w.pause) / pauseKeeps
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.ours {
		h.credit -= fetchCosts
		if hits > 0 && last >= w.lapses {
			h.credit = min(h.credit+sparedEarns, maxCredit)
			// Which hit would have fetched it is unknown. If hits are few, the last one counts: better to count too few spared
			// queries than too many.
			first := last
			if w.isHot() {
				first = min(last, max(w.lapses, e.Stored())+answers.Instant(w.pause)) // there was no hit between the two
			}
			w.lapses = first + answers.Instant(w.ttl)
		}
	}
	if w.pause == 0 || time.Duration(now-last) > coldAfter*w.pause {
		return false
	}
	if !w.isHot() {
		return h.credit > maxCredit/2
	}
	return h.credit >= 0
}

func (w *watched) isHot() bool { return w.ttl >= hotHits*w.pause }

// again watches the entry that replaced an entry.
func (h *ahead) again(w *watched, old *answers.Entry, k *msg.Key, begun answers.Instant) {
	c := h.cache
	e, left := c.look(k)
	if e == nil || left <= 0 || e == old || !e.Mark() {
		return // the fetch failed
	}
	w.took = time.Duration(c.store.Now() - begun)
	h.mu.Lock()
	defer h.mu.Unlock()
	if !w.shared {
		if w.shared = time.Duration(ends(e)-w.ends) < w.ttl/2; w.shared {
			h.cut = min(h.cut+1, 2*cutMany)
		} else {
			h.cut = max(h.cut-1, 0)
		}
	}
	w.entry, w.ends, w.ours, w.ttl = weak.Make(e), ends(e), true, max(w.ttl, ttlOf(e))
	w.hits, _ = e.Heat()
	h.push(w)
}

// missed counts an upstream query that a client waits for.
func (h *ahead) missed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.credit = min(h.credit+missEarns, maxCredit)
}

// end stops the timer, and leaves the names to the next chain.
func (h *ahead) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	if h.timer != nil {
		h.timer.Stop()
	}
	for _, w := range h.due {
		if e := w.entry.Value(); e != nil {
			e.Unmark()
		}
	}
	h.due = nil
}

// dueNext is a heap (container/heap) of watched names, the next one first.
type dueNext []*watched

func (d dueNext) Len() int           { return len(d) }
func (d dueNext) Less(i, j int) bool { return d[i].at < d[j].at }
func (d dueNext) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }

// Push implements heap.Interface, as Pop does.
func (d *dueNext) Push(w any) { *d = append(*d, w.(*watched)) } //nolint:errcheck // nothing else is pushed

// Pop removes the last one.
func (d *dueNext) Pop() any {
	old := *d
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*d = old[:len(old)-1]
	return last
}
