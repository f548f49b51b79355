package cache

import (
	"container/heap"
	"context"
	"sync"
	"time"
	"weak"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/msg"
)

// ahead refreshes popular entries shortly before they expire, by a timer. So clients rarely wait for such a name, and an entry is used for
// nearly all of its TTL.
//
// A credit bounds the cost: the upstream gets at most 1.1 times the queries that it would get if entries expired, plus one for each name
// that has just become unpopular, plus 20 (maxCredit). The credit counts tenths of a query. A query that a client waits for earns one. A
// refresh costs ten. It earns eleven if, without it, a client's hit would have had to fetch the expired entry.
//
// While no name is watched, no timer runs.
type ahead struct {
	cache *Cache

	mu     sync.Mutex // guards the fields below; not held while an entry is refreshed
	due    dueNext
	timer  *time.Timer // nil until the first name is scheduled
	ended  bool
	credit int
	cut    int // refreshes that brought only the rest of the old TTL, minus those with a full TTL; 0 to 2*cutMany
	begun  int // number of calls of add
}

// The earnings and costs of the credit, in tenths of a query.
const (
	missEarns   = 1
	fetchCosts  = 10
	sparedEarns = 11
	maxCredit   = 200
)

// An entry is refreshed this long before it expires: a hundredth of its TTL, but at most leadUsual; or twice the time that its last refresh
// took, if that is longer, but at most 1/leadShare of the TTL. The times of early refreshes are rounded down to multiples of leadStep, so
// that many names wake the process at most forty times a second.
const (
	leadUsual = 100 * time.Millisecond
	leadShare = 11
	leadStep  = 25 * time.Millisecond
)

// If cut is at least cutMany, the upstream is taken for a cache that answers with the remaining TTL of its own entries, so that an early
// refresh gains nothing. Then only every tryAgain-th name that becomes popular is refreshed early, as a test; the others when they expire.
const (
	cutMany  = 3
	tryAgain = 16
)

// hotHits is how many hits within a TTL make a name hot: its refreshes nearly pay for themselves. Without them the name would cost one
// upstream query for each TTL plus the time until the next hit, which is on average at most an eighth of the TTL. Colder names are
// refreshed only from credit that hot names leave over.
const hotHits = 8

// pauseKeeps smooths the average pause between hits: a new measurement has the weight 1/pauseKeeps.
const pauseKeeps = 4

// A name is cold, and no longer refreshed, after coldAfter times its average pause without a hit. If hits come at random, each check stops
// one popular name in fifty by mistake (e^-4).
const coldAfter = 4

// watched is one popular name.
type watched struct {
	// A weak pointer, so that an evicted entry is freed at once: it may be large, and expire much later.
	entry  weak.Pointer[answers.Entry]
	ends   answers.Instant // when the entry's TTL ends
	at     answers.Instant // when fire checks the name next, to refresh its entry
	series *series         // the counters for the hit that made the name popular
	hits   int             // the entry's count of hits when a refresh stored it: it inherits its predecessor's; 0 for the first entry
	pause  time.Duration   // average time between two hits; 0: not measured yet
	ttl    time.Duration   // longest TTL that an entry of the name had so far
	lapses answers.Instant // when the entry would have expired if nothing had refreshed it early
	took   time.Duration   // duration of the last refresh
	ours   bool            // the entry comes from a refresh by ahead, which worth books as a cost
	// The upstream seems to be a cache that answers with the remaining TTL of its own entry, so the refresh comes when the entry expires.
	shared bool
}

// add starts to watch an entry that the caller has marked (Entry.Mark).
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

// push schedules the next check of a name, and sets the timer. It is called with mu held. If as many names are watched as the cache may
// have entries, it drops the name. Names of evicted entries count until they are due.
func (h *ahead) push(w *watched) {
	if h.ended {
		if e := w.entry.Value(); e != nil {
			e.Unmark() // so that the plugin chain of the next configuration can watch the entry
		}
		return
	}
	if len(h.due) >= h.cache.capacity[answers.Success]+h.cache.capacity[answers.Denial] {
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

// arm sets the timer to the time when the first name is due. It is called with mu held.
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

// check refreshes the entry of a watched name if that is worth its cost. Otherwise the name is no longer watched, until a later entry of
// it becomes popular.
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

// queryOf rebuilds the query that an entry answers; ok is false if the question section in the entry's key cannot be parsed.
func queryOf(e *answers.Entry) (a *query, r *dns.Msg, ok bool) {
	k := e.Key()
	a, r = new(query), new(dns.Msg)
	return a, r, r.Unpack(k.Query(dns.Id(), ednsSize)) == nil && a.read(r)
}

// context returns the context that a client of this series would have, with the server. It lacks what plugins before the cache add for a
// single query, for example metadata.
func (s *series) context() context.Context {
	ctx := context.WithValue(context.Background(), dnsserver.Key{}, s.server)
	return context.WithValue(ctx, dnsserver.LoopKey{}, 0)
}

// worth books what the last refresh cost and saved, and reports whether the name is still popular and the credit pays for another
// refresh.
func (h *ahead) worth(w *watched, e *answers.Entry, now answers.Instant) bool {
	all, last := e.Heat()
	hits := all - w.hits
	since := time.Duration(now - e.Stored())
	switch {
	case last <= e.Stored():
		hits = 0
	case hits <= 0: // a long gap between hits has reset the counter, or it is at its maximum
		hits = all
	}
	if since >= w.ttl/2 && hits > 0 {
		// One hit less, because a name with few hits may be popular only by chance.
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
			// Without refreshes, the first hit after lapses would have fetched the entry, but when it came is unknown. A hot name's came
			// within an average pause. For others take the last hit: it is better to count too few spared queries than too many.
			first := last
			if w.isHot() {
				first = min(last, max(w.lapses, e.Stored())+answers.Instant(w.pause)) // no hit can be later than the last
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

// again watches the entry that a refresh has stored in place of old. If the refresh failed, the name is no longer watched.
func (h *ahead) again(w *watched, old *answers.Entry, k *msg.Key, begun answers.Instant) {
	c := h.cache
	e, left := c.look(k)
	if e == nil || left <= 0 || e == old || !e.Mark() {
		return // the refresh failed, or the new entry is watched already
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

// missed adds to the credit for an upstream query that a client waits for.
func (h *ahead) missed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.credit = min(h.credit+missEarns, maxCredit)
}

// end stops the timer and unmarks the watched entries, so that the plugin chain of the next configuration can watch them.
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

// dueNext is a heap (container/heap) of watched names; the one that is due first is at index 0.
type dueNext []*watched

func (d dueNext) Len() int           { return len(d) }
func (d dueNext) Less(i, j int) bool { return d[i].at < d[j].at }
func (d dueNext) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }

// Push implements heap.Interface, as Pop does.
func (d *dueNext) Push(w any) { *d = append(*d, w.(*watched)) } //nolint:errcheck // nothing else is pushed

// Pop removes and returns the last element of the slice.
func (d *dueNext) Pop() any {
	old := *d
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*d = old[:len(old)-1]
	return last
}
