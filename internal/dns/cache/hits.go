package cache

import (
	"slices"
	"sync/atomic"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/queryinfo"
)

// FastPath returns a handler that answers cache hits in zone at server without the plugin chain. It returns nil if the zone is not cached,
// or if a plugin before the cache needs replies as messages.
func (c *Cache) FastPath(server *dnsserver.Server, zone string) fastpath.Handler {
	if !c.raw || !slices.ContainsFunc(c.zones, func(z string) bool { return plugin.Name(z).Matches(zone) }) {
		return nil
	}
	return &hits{cache: c, server: server}
}

// hits is the fast path at one server for one zone of the cache's server block. It gives only answers that ServeDNS would give at
// once and without a query to the upstream.
type hits struct {
	cache  *Cache
	server *dnsserver.Server
	series atomic.Pointer[series] // nil until the first hit
}

// Answer implements fastpath.Handler.
func (h *hits) Answer(b []byte, q *fastpath.Query) ([]byte, queryinfo.Level, bool) {
	c := h.cache
	success, denial, ok := c.space.TryPeek(&q.Key)
	if !ok || success == nil && denial == nil {
		return b, queryinfo.Miss, false
	}
	now := c.store.Now()
	e, left := c.choose(success, denial, now)
	if e == nil || left <= 0 { // only ServeDNS gives stale answers, because it refreshes the entry too
		return b, queryinfo.Miss, false
	}
	if c.needsServeDNS(e, now) {
		return b, queryinfo.Miss, false
	}
	if e.Size()+q.OPT.Len() > q.OPT.MaxAnswer(q.TCP) {
		return b, queryinfo.Miss, false
	}
	success.Use()
	denial.Use()
	if c.prefetch > 0 {
		e.Hit(now, c.gap)
	}
	if c.source != nil && c.source.Enabled() {
		c.offer(e, q, now)
	}
	s := h.series.Load()
	if s == nil { // made at the first hit, so that a series without hits is not exported
		s = c.series.Get(h.server, c.newSeries)
		h.series.Store(s)
	}
	s.requests.Inc()
	s.hits[e.Class()].Inc()
	b = e.AppendReply(b, &answers.Reply{ID: q.ID, Question: q.Question, RD: q.RD, CD: q.CD, AD: q.AD, TTL: uint32(left), Rotate: c.rotate})
	return q.OPT.Append(b, len(b)-e.Size()), queryinfo.Hit, true
}
