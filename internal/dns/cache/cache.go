// Package cache is the CoreDNS plugin that answers queries from earlier answers. It replaces CoreDNS's own cache, with the same name,
// syntax and metrics. It stores answers in wire form, in a store that outlives the server, so that a reloaded configuration or a
// successor process starts with the same entries.
//
// It serves an entry after its TTL only if the Corefile enables that (serve_stale, hold_denials). Server blocks share entries only if their
// settings lead to the same answers.
//
// If the upstream fails, it serves a stale entry if the Corefile allows one; otherwise the client gets the failure. An answer that cannot
// be cached still goes to the client.
package cache

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/limit"
	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/dns/queryinfo"
	"github.com/neardns/neardns/internal/offload/entries"
)

// Cache is the plugin's handler for one server block.
type Cache struct {
	policy
	next    plugin.Handler
	store   *answers.Store
	space   *answers.Space
	metrics *Metrics
	raw     bool            // no plugin before the cache needs replies as messages, so they are written as bytes
	source  *entries.Source // offers entries to the kernel program; nil: this block offers none

	bound   sync.Once // calls setBounds, at start-up or before the first answer is stored
	series  answers.CowMap[*dnsserver.Server, *series]
	flights flights
	health  health
	// A semaphore of the refreshes in flight. If it is full, no refresh starts; the next query tries again.
	background chan struct{}
	ahead      ahead
	buffers    sync.Pool // *[]byte
}

// earlyRecheck is the pause after a failed early refresh before the next attempt. It is short because the entry expires soon.
const earlyRecheck = time.Second

// maxBackground is the maximum of refreshes in flight in one block. It bounds the goroutines if the upstream hangs while all entries are
// stale. It is as high as the default limit of misses, at which package limit refuses refreshes: the client then gets the stale entry.
const maxBackground = limit.DefaultLimit

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

// query has parts of a client's query on which the reply depends.
type query struct {
	key      msg.Key
	question [msg.MaxQuestion]byte // in wire form, in the client's case
	n        int
	do, cd   bool
	ad       bool // the client set AD or DO, so its reply may have AD set (RFC 6840, sections 5.7 and 5.8)
	rd       bool
}

// read sets the fields from r. It fails if the name has no wire form, which cannot happen for a message from the network.
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
	case len(r.Question) > 1: // malformed (RFC 9619)
		return dns.RcodeFormatError, nil
	case r.Question[0].Qtype == dns.TypeAXFR || r.Question[0].Qtype == dns.TypeIXFR: // a zone transfer is not cached
		return plugin.NextOrFailure(c.Name(), c.next, ctx, w, r)
	case !c.inZones(r.Question[0].Name) || !a.read(r):
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
	c.reply(w, r, &a, e, uint32(left))
	return dns.RcodeSuccess, nil
}

// look returns the entry of k that can be served now, and its remaining TTL in seconds (see choose). It counts no use.
func (c *Cache) look(k *msg.Key) (e *answers.Entry, left int) {
	success, denial := c.space.Peek(k)
	return c.choose(success, denial, c.store.Now())
}

// inZones reports whether the name is in a zone that is cached.
func (c *Cache) inZones(name string) bool {
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

// choose returns the entry to serve of the two that a key may have, and its remaining TTL in seconds. At zero or below the entry is
// stale. e is nil if neither can be served.
func (c *Cache) choose(success, denial *answers.Entry, now answers.Instant) (e *answers.Entry, left int) {
	good, staleGood := 0, false
	if success != nil {
		if good = success.Left(now); good > 0 {
			return success, good
		}
		staleGood = c.servable(success, good)
	}
	if denial != nil {
		bad := denial.Left(now)
		failure := failed(denial.Rcode())
		switch {
		case bad > 0 && !(failure && staleGood): // a stale success is better than a cached failure
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

// servable reports whether an entry that expired -left seconds ago may be served.
func (c *Cache) servable(e *answers.Entry, left int) bool {
	if c.staleFor == 0 || time.Duration(-left)*time.Second >= c.staleFor {
		return false
	}
	if c.onSilence {
		if _, silent, ever := e.Failed(); ever && !silent {
			return false // the upstream sent an answer to the last refresh that failed
		}
	}
	return true
}

// needsServeDNS reports whether the fast path must leave a hit to ServeDNS, which refreshes the entry, or lets a timer do so (see ahead).
func (c *Cache) needsServeDNS(e *answers.Entry, now answers.Instant) bool {
	switch {
	case c.prefetch == 0:
		return false
	case c.timed:
		return !e.Marked() && e.Hits(now, c.gap) >= c.prefetch
	}
	return c.early(e, now) && e.Hits(now, c.gap) >= c.prefetch
}

// early reports whether an entry, if it is popular, is due for refresh: at most the configured percentage of its TTL is left. The time is
// exact to the nanosecond, whereas CoreDNS counts whole seconds: with a TTL of 5 s it refreshes when a fifth is left, and so sends up to a
// quarter more queries.
func (c *Cache) early(e *answers.Entry, now answers.Instant) bool {
	ttl := time.Duration(e.TTL()) * time.Second
	return ttl-time.Duration(now-e.Stored()) <= ttl/100*time.Duration(c.percentage)
}

// stale answers a query whose entry has expired: with the entry or, with verify, with a new answer if one comes in the configured time. It
// starts a refresh if mayRefresh permits it.
func (c *Cache) stale(ctx context.Context, w dns.ResponseWriter, r *dns.Msg, a *query, e *answers.Entry, s *series) (int, error) {
	now := c.store.Now()
	if c.mayRefresh(e, now, c.recheck) {
		f, leads := c.refresh(ctx, w, r, a, e, s)
		if f == nil && c.onSilence {
			return c.miss(ctx, w, r, a, nil, s) // stale_on_silence: without a refresh, it is not known whether the upstream is silent
		}
		// With verify, the client waits for the refresh, except while the upstream is down. With stale_on_silence it waits also then,
		// because only a silent upstream permits a stale answer.
		if f != nil && c.verify && (!c.health.down(now) || c.onSilence) && c.await(f, leads) {
			if f.entry == nil || !f.kept && !leads {
				return c.miss(ctx, w, r, a, nil, s) // the new answer cannot be shared, so forward this client's query
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

// await waits for a refresh, at most until verifyWait after its start (0: without limit), and reports whether its answer replaces the stale
// entry.
func (c *Cache) await(f *flight, leads bool) bool {
	if c.verifyWait == 0 {
		<-f.done
		return f.refreshed
	}
	left := c.verifyWait - time.Duration(c.store.Now()-f.begun)
	if left <= 0 {
		return false // the refresh has lasted longer than verifyWait
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

// mayRefresh reports whether the upstream may be queried again for an entry. After a failed refresh, a query may follow after recheck (the
// failure recheck timer of RFC 8767, section 5; for a denied entry at most heldRecheck), or as soon as a silent upstream has sent any
// answer. While the upstream is down, the block may send one query per probeEvery, for all its entries together.
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

// failed reports whether the response code of an entry means a failure of the server, rather than an answer about the name.
func failed(rcode int) bool {
	return rcode == dns.RcodeServerFailure || rcode == dns.RcodeNotImplemented
}
