package metrics

import (
	"sync/atomic"

	"github.com/coredns/coredns/core/dnsserver"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/queryinfo"
)

// Hit returns who counts the hits of a zone of the block, at a server, that next answers before the chain.
func (m *Metrics) Hit(server *dnsserver.Server, zone string, next fastpath.Handler) fastpath.Handler {
	h := &hits{next: next, key: seriesKey{server: server, zone: zone}, metrics: m}
	if m.next != nil {
		h.writer = m.next.Name() // by CoreDNS's own account, who wrote is the plugin right behind this one
	}
	return h
}

// hits counts at one server and in one zone what ServeDNS counts.
type hits struct {
	next    fastpath.Handler
	metrics *Metrics
	key     seriesKey
	writer  string
	series  atomic.Pointer[series] // nil until the first hit
}

// Answer implements hit.Handler.
func (h *hits) Answer(b []byte, q *fastpath.Question) ([]byte, queryinfo.Level, bool) {
	before := len(b)
	b, level, ok := h.next.Answer(b, q)
	if !ok {
		return b, level, false
	}
	s := h.series.Load()
	if s == nil { // not before: a series that was never counted must not appear
		s = h.metrics.series.Get(h.key, newSeries)
		h.series.Store(s)
	}
	message, code := b[before:], 0
	if len(message) > 0 { // else there is none, and ServeDNS counts that so
		code = int(message[3] & 0xf)
	}
	s.report(&question{start: q.Begun, size: len(q.Wire), qtype: q.Type, do: q.DO, tcp: q.TCP, v6: !q.Client.Is4()},
		&answer{rcode: code, size: len(message), plugin: h.writer})
	return b, level, true
}
