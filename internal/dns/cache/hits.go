package cache

import (
	"slices"
	"sync/atomic"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/queryinfo"
)

// Hit returns who answers hits of a zone of the block, at a server, before the chain; nil where the chain has to: the zone is not
// cached, or somebody before the cache wants to see messages. The cache is the last to have a part in a hit, so there is no next one.
func (c *Cache) Hit(server *dnsserver.Server, zone string, _ fastpath.Handler) fastpath.Handler {
	if !c.raw || !slices.ContainsFunc(c.zones, func(z string) bool { return plugin.Name(z).Matches(zone) }) {
		return nil
	}
	return &hits{cache: c, at: seriesKey{server: server}}
}

// hits answers from one block's cache, at one server, what ServeDNS would answer at once and without another look at the upstream.
type hits struct {
	cache  *Cache
	at     seriesKey
	series atomic.Pointer[series] // nil until the first hit
}

// Answer implements hit.Handler.
func (h *hits) Answer(b []byte, q *fastpath.Question) ([]byte, queryinfo.Level, bool) {
	c := h.cache
	success, denial, ok := c.space.TryPeek(&q.Key)
	if !ok || success == nil && denial == nil {
		return b, queryinfo.Miss, false
	}
	now := c.store.Now()
	e, left := c.choose(success, denial, now)
	if e == nil || left <= 0 { // who says what is stale looks at the upstream, too
		return b, queryinfo.Miss, false
	}
	if c.calls(e, now) {
		return b, queryinfo.Miss, false // it is the chain that does it
	}
	size := dns.MinMsgSize
	o := edns{present: q.EDNS, size: q.Size, flags: q.Flags}
	if q.TCP {
		size = dns.MaxMsgSize
	} else if q.EDNS {
		size = max(size, int(q.Size))
	}
	if !o.fits(e.Size(), size) {
		return b, queryinfo.Miss, false
	}
	success.Use()
	denial.Use()
	if c.prefetch > 0 {
		e.Hit(now, c.gap)
	}
	if c.source != nil && c.source.Open() {
		c.offer(e, q, now)
	}
	s := h.series.Load()
	if s == nil { // not before: a series that was never counted must not appear
		s = c.series.Get(h.at, c.newSeries)
		h.series.Store(s)
	}
	s.requests.Inc()
	s.hits[e.Class()].Inc()
	ttl := uint32(left)
	if c.keepTTL {
		ttl = e.TTL()
	}
	b = e.AppendReply(b, &answers.Reply{ID: q.ID(), Question: q.Asked, RD: q.RD, CD: q.CD, AD: q.AD, TTL: ttl, Rotate: c.rotate})
	return o.append(b, len(b)-e.Size()), queryinfo.Hit, true
}
