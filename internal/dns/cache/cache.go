// Package cache is the CoreDNS plugin that answers queries from earlier answers. It replaces CoreDNS's own cache, with the same name,
// syntax and metrics, and stores answers in wire form, in a store that outlives the server: a reload or a successor starts with the same
// entries.
//
// It guarantees that an entry is served beyond its TTL only as a stale one, if the operator allows that, and that one block's entries never
// answer queries of a block that would answer differently.
//
// On failure of the upstream it serves a stale entry; without one, the failure goes to the client. An answer that cannot be cached is
// passed on unchanged.
package cache

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/dns/queryinfo"
	"github.com/neardns/neardns/internal/offload"
)

// Cache is the plugin in one server block.
type Cache struct {
	policy
	next    plugin.Handler
	store   *answers.Store
	space   *answers.Space
	metrics *Metrics
	raw     bool            // bytes that are written reach the socket unchanged
	source  *offload.Source // offers hits to the kernel; nil: none are offered

	bound   sync.Once // before the first answer is stored
	series  answers.CowMap[seriesKey, *series]
	flights flights
	health  health
	// Refreshes in flight. Beyond its capacity, a refresh is left to the next query.
	background chan struct{}
	ahead      ahead
	buffers    sync.Pool // *[]byte
}

// earlyRecheck is how soon an early refresh that failed is retried: little time is left before the entry expires.
const earlyRecheck = time.Second

// maxBackground bounds the refreshes in flight in one block. An upstream that hangs while everything is stale then costs some hundred
// goroutines, not one for each name.
const maxBackground = 256

func newCache(p policy, store *answers.Store, space *answers.Space, m *Metrics) *Cache {
	c := &Cache{
		policy: p, store: store, space: space, metrics: m, background: make(chan struct{}, maxBackground),
		buffers: sync.Pool{New: func() any { b := make([]byte, 0, 1500); return &b }},
	}
	c.ahead.cache, c.ahead.credit = c, maxCredit/2
	return c
}

// Name implements plugin.Handler.
func (c *Cache) Name() string { return "cache" }

// query is the part of a query that an entry's reply depends on.
type query struct {
	key      msg.Key
	question [260]byte // in wire form, in the client's case
	n        int
	do, cd   bool
	ad       bool // the client understands AD (RFC 6840, sections 5.7 and 5.8)
	rd       bool
}

// read fails on a name without wire form, which no message can contain.
func (a *query) read(r *dns.Msg) bool {
	q, err := msg.AppendQuestion(a.question[:0], r.Question[0].Name, r.Question[0].Qtype, r.Question[0].Qclass)
	if err != nil {
		return false
	}
	a.n, a.cd, a.rd = len(q), r.CheckingDisabled, r.RecursionDesired
	if o := r.IsEdns0(); o != nil {
		a.do = o.Do()
	}
	a.ad = a.do || r.AuthenticatedData
	a.key.Set(q, a.do, a.cd)
	return true
}

// ServeDNS implements plugin.Handler.
func (c *Cache) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	var a query
	switch {
	case r.Opcode != dns.OpcodeQuery || len(r.Question) == 0:
		return plugin.NextOrFailure(c.Name(), c.next, ctx, w, r)
	case len(r.Question) > 1: // RFC 9619: it is malformed, and one answer would be one too few
		return dns.RcodeFormatError, nil
	case r.Question[0].Qtype == dns.TypeAXFR || r.Question[0].Qtype == dns.TypeIXFR: // it has sections of its own
		return plugin.NextOrFailure(c.Name(), c.next, ctx, w, r)
	case !c.within(r.Question[0].Name) || !a.read(r):
		return plugin.NextOrFailure(c.Name(), c.next, ctx, w, r)
	}
	s := c.find(ctx)
	s.requests.Inc()
	now := c.store.Now()
	success, denial := c.space.Get(&a.key)
	e, left := c.choose(success, denial, now)
	if e == nil {
		s.misses.Inc()
		return c.miss(ctx, w, r, &a, success, s)
	}
	s.hits[e.Class()].Inc()
	queryinfo.From(ctx).Found(queryinfo.Hit)
	if left <= 0 {
		return c.stale(ctx, w, r, &a, e, s)
	}
	if c.prefetch > 0 && e.Hit(now, c.gap) >= c.prefetch {
		switch {
		case c.timed:
			if e.Mark() {
				c.ahead.add(e, s)
			}
		case c.early(e, now) && c.mayRefresh(e, now, earlyRecheck):
			c.refresh(ctx, nil, r, &a, e, s)
		}
	}
	ttl := uint32(left)
	if c.keepTTL {
		ttl = e.TTL()
	}
	c.reply(w, r, &a, e, ttl)
	return dns.RcodeSuccess, nil
}

// look finds the current entry.
func (c *Cache) look(k *msg.Key) (e *answers.Entry, left int) {
	success, denial := c.space.Peek(k)
	return c.choose(success, denial, c.store.Now())
}

// within reports whether the name is in a zone that is cached.
func (c *Cache) within(name string) bool {
	if strings.Contains(name, `\`) { // an escaped dot ends no label
		return plugin.Zones(c.zones).Matches(name) != ""
	}
	for _, z := range c.zones {
		at := len(name) - len(z)
		if z == "." || at >= 0 && (at == 0 || name[at-1] == '.') && strings.EqualFold(name[at:], z) {
			return true
		}
	}
	return false
}

// choose returns one of the two entries that a key may have, and for how many seconds it is valid. At zero or below it is stale.
func (c *Cache) choose(success, denial *answers.Entry, now answers.Instant) (e *answers.Entry, left int) {
	good, staleGood := 0, false
	if success != nil {
		if good = success.Left(now); good > 0 {
			return success, good
		}
		staleGood = c.servable(success, good)
		if staleGood && c.preferPositive {
			return success, good
		}
	}
	if denial != nil {
		bad := denial.Left(now)
		failure := failed(denial.Rcode())
		switch {
		case bad > 0 && !(failure && staleGood): // a failure passes; the earlier answer is better
			return denial, bad
		case bad <= 0 && !failure && c.servable(denial, bad) && (!staleGood || denial.Stored() > success.Stored()):
			return denial, bad
		}
	}
	if staleGood {
		return success, good
	}
	return nil, 0
}

// servable reports whether an entry may be served stale, -left seconds after it expired.
func (c *Cache) servable(e *answers.Entry, left int) bool {
	if c.staleFor == 0 || time.Duration(-left)*time.Second >= c.staleFor {
		return false
	}
	if c.onSilence {
		if _, silent, ever := e.Failed(); ever && !silent {
			return false // the upstream answered
		}
	}
	return true
}

// calls reports whether a hit needs ServeDNS, to watch an entry that has become popular or to refresh it.
func (c *Cache) calls(e *answers.Entry, now answers.Instant) bool {
	switch {
	case c.prefetch == 0:
		return false
	case c.timed:
		return !e.Marked() && e.Hits(now, c.gap) >= c.prefetch
	}
	return c.early(e, now) && e.Hits(now, c.gap) >= c.prefetch
}

// early reports whether a popular entry is due for refresh by its percentage of the TTL, to the nanosecond. CoreDNS counts whole seconds;
// of a TTL of 5 s that would be at least a fifth, and a fifth more queries to the upstream.
func (c *Cache) early(e *answers.Entry, now answers.Instant) bool {
	ttl := time.Duration(e.TTL()) * time.Second
	return ttl-time.Duration(now-e.Stored()) <= ttl/100*time.Duration(c.percentage)
}

// stale answers with an expired entry, or with the upstream's new answer if the client should wait for it.
func (c *Cache) stale(ctx context.Context, w dns.ResponseWriter, r *dns.Msg, a *query, e *answers.Entry, s *series) (int, error) {
	now := c.store.Now()
	if c.mayRefresh(e, now, c.recheck) {
		f, leads := c.refresh(ctx, w, r, a, e, s)
		if f == nil && c.onSilence {
			return c.miss(ctx, w, r, a, nil, s) // no refresh could start, so the upstream is not known to be silent
		}
		// If stale answers need a silent upstream, the query that checks whether it is back waits for it.
		if f != nil && c.verify && (!c.health.down(now) || c.onSilence) && c.await(f, leads) {
			if f.entry == nil || !f.kept && !leads {
				return c.miss(ctx, w, r, a, nil, s) // the new answer is each client's own
			}
			c.reply(w, r, a, f.entry, f.left(c.store.Now()))
			return dns.RcodeSuccess, nil
		}
	}
	s.stale.Inc()
	queryinfo.From(ctx).Found(queryinfo.Stale)
	ttl := c.staleTTL
	if e.Denied() {
		ttl = min(ttl, c.heldTTL(e))
	}
	c.reply(w, r, a, e, ttl)
	return dns.RcodeSuccess, nil
}

// await waits for a refresh as long as a client should, and reports whether it replaced the stale entry.
func (c *Cache) await(f *flight, leads bool) bool {
	if c.verifyWait == 0 {
		<-f.done
		return f.refreshed
	}
	left := c.verifyWait - time.Duration(c.store.Now()-f.begun)
	if left <= 0 {
		return false // an earlier client has waited already
	}
	t := time.NewTimer(left)
	defer t.Stop()
	select {
	case <-f.done:
		return f.refreshed
	case <-t.C:
		if leads {
			c.health.silence()
		}
		return false
	}
}

// mayRefresh reports whether the upstream may be queried again about an entry: not soon after it failed (RFC 8767, section 5: the failure
// recheck timer), but at once when an upstream that was silent is heard again.
func (c *Cache) mayRefresh(e *answers.Entry, now answers.Instant, recheck time.Duration) bool {
	if c.health.down(now) {
		return c.health.probe(now)
	}
	at, silent, ever := e.Failed()
	if !ever {
		return true
	}
	if e.Denied() {
		recheck = min(recheck, heldRecheck)
	}
	return time.Duration(now-at) >= recheck || silent && c.health.heard() > at
}

// failed reports whether a response code is about the server, not the name.
func failed(rcode int) bool {
	return rcode == dns.RcodeServerFailure || rcode == dns.RcodeNotImplemented
}
