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
// that has just become unpopular, plus creditMost. The credit counts tenths of a query. A query for a client earns one. A refresh costs
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

// The credit's terms, in tenths of a question.
const (
	missEarns   = 1
	fetchCosts  = 10
	sparedEarns = 11
	creditMost  = 200
)

// How long before its end an answer is fetched: a hundredth of its TTL, but no longer than leadUsual; longer where the upstream takes
// long, up to leadShare of the TTL. Ends are rounded down to leadStep, so that many names wake the process forty times a second.
const (
	leadUsual = 100 * time.Millisecond
	leadShare = 11 // its part
	leadStep  = 25 * time.Millisecond
)

// From cutMany on the upstream counts as a cache whose answers end with ours, and only each tryAgain-th name is fetched early.
const (
	cutMany  = 3
	tryAgain = 16
)

// hotHits is how many hits within a TTL make a refresh nearly pay for itself: without it, the name costs one query for each TTL plus the
// time until the next hit, which is then an eighth of the TTL. Refreshes of colder names are paid from the savings of others.
const hotHits = 8

// roomEvery bounds what a flood of names can make of looking for room.
const roomEvery = time.Second

// pauseKeeps is how slowly the pause between hits follows what is heard of it.
const pauseKeeps = 4

// coldAfter is for how many times its usual pause a name must not have been asked for to count as cold: by chance that happens once in
// fifty cases (e^-4).
const coldAfter = 4

// watched is one name that is asked for often.
type watched struct {
	// Weak, so that what the store evicts is gone: an answer may be large, and its end far away.
	entry  weak.Pointer[answers.Entry]
	ends   answers.Instant // the entry
	at     answers.Instant // when it is looked at, and fetched
	series *series         // of who asked
	hits   int             // of the entry, when it was kept
	pause  time.Duration   // between two hits, in the last TTL that was whole
	ttl    time.Duration   // the longest so far
	lapses answers.Instant // when an answer would have ended that was left to expire
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

// push is called with mu held. It watches no more than are kept.
func (h *ahead) push(w *watched) {
	if h.ended {
		if e := w.entry.Value(); e != nil {
			e.Unmark() // who comes after this chain watches it
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

// makeRoom forgets what the store has evicted, once in roomEvery at most, and reports whether there was any. It is called with mu held.
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

// fire looks at all that is due.
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
		h.look(w, now)
	}
}

// look fetches an answer that is worth it. One that is let go is watched again when it is asked for as often again.
func (h *ahead) look(w *watched, now answers.Instant) {
	c, e := h.cache, w.entry.Value()
	if e == nil {
		return // evicted
	}
	a, r, ok := known(e)
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

// known makes the question again that an entry answers.
func known(e *answers.Entry) (a *asked, r *dns.Msg, ok bool) {
	k := e.Key()
	q, do, cd := k.Question()
	name, end, err := dns.UnpackDomainName(q, 0)
	if err != nil || len(q)-end != 4 {
		return nil, nil, false // it came over no wire
	}
	r = new(dns.Msg).SetQuestion(name, binary.BigEndian.Uint16(q[end:]))
	r.Question[0].Qclass, r.CheckingDisabled = binary.BigEndian.Uint16(q[end+2:]), cd
	if do {
		r.SetEdns0(ednsSize, true)
	}
	a = new(asked)
	return a, r, a.read(r)
}

// context is one as of a client of the series, without the client. What a plugin before the cache put into a client's context
// (metadata) is not in it: that was one question's.
func (s *series) context() context.Context {
	ctx := context.WithValue(context.Background(), dnsserver.Key{}, s.key.server)
	ctx = context.WithValue(ctx, dnsserver.LoopKey{}, 0)
	if s.key.view != "" {
		ctx = context.WithValue(ctx, dnsserver.ViewKey{}, s.key.view)
	}
	return ctx
}

// worth books the last TTL, and reports whether a question for another one is to be had for the credit.
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
		// One hit less: names that were hot by chance are chosen, too.
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
			h.credit = min(h.credit+sparedEarns, creditMost)
			// By whom it would have been fetched is not known. Where hits are few no earlier one counts than the last: rather too few
			// are spared than too many.
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
		return h.credit > creditMost/2
	}
	return h.credit >= 0
}

func (w *watched) isHot() bool { return w.ttl >= hotHits*w.pause }

// again watches what was fetched in an entry's place.
func (h *ahead) again(w *watched, old *answers.Entry, k *msg.Key, begun answers.Instant) {
	c := h.cache
	e, left := c.look(k)
	if e == nil || left <= 0 || e == old || !e.Mark() {
		return // it failed
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

// missed notes a question to the upstream that a client waits for.
func (h *ahead) missed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.credit = min(h.credit+missEarns, creditMost)
}

// end stops the timer, and leaves what was watched to who comes after.
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

// dueNext is a heap (container/heap) of what is watched, the next one first.
type dueNext []*watched

func (d dueNext) Len() int           { return len(d) }
func (d dueNext) Less(i, j int) bool { return d[i].at < d[j].at }
func (d dueNext) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }

// Push implements heap.Interface, as Pop does.
func (d *dueNext) Push(w any) { *d = append(*d, w.(*watched)) } //nolint:errcheck // nothing else is pushed

// Pop takes the last one out.
func (d *dueNext) Pop() any {
	old := *d
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*d = old[:len(old)-1]
	return last
}
