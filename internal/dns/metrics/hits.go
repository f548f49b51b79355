package metrics

import (
	"sync/atomic"

	"github.com/coredns/coredns/core/dnsserver"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/msg"
)

// Counter counts the hits of one zone at one server that the fast path answers. It uses the same series as ServeDNS.
type Counter struct {
	metrics *Metrics
	key     seriesKey
	writer  string                 // name of the plugin that counts as the one that wrote the answer
	series  atomic.Pointer[series] // nil until the first hit
}

// Counter returns the counter of a zone at a server.
func (m *Metrics) Counter(server *dnsserver.Server, zone string) *Counter {
	c := &Counter{metrics: m, key: seriesKey{server: server, zone: zone}}
	if m.next != nil {
		c.writer = m.next.Name() // as in CoreDNS, the next plugin counts as the one that wrote the answer
	}
	return c
}

// Count counts a query and its answer. message is empty if the client gets no answer. A nil Counter counts nothing.
func (c *Counter) Count(q *fastpath.Query, message []byte) {
	if c == nil {
		return
	}
	s := c.series.Load()
	if s == nil { // made at the first hit, so that a series without hits is not exported
		s = c.metrics.series.Get(c.key, newSeries)
		c.series.Store(s)
	}
	code := 0
	if len(message) > 0 {
		code = msg.Rcode(message)
	}
	s.report(&sample{start: q.Received, size: len(q.Wire), qtype: q.Type, do: q.OPT.DO(), tcp: q.TCP, v6: !q.Client.Is4()},
		&answer{rcode: code, size: len(message), plugin: c.writer})
}
