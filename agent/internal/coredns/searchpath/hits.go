package searchpath

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/agent/internal/hit"
	"github.com/neardns/neardns/agent/internal/query"
)

// Hit returns who leaves to the chain what ServeDNS would complete, and the rest to next.
func (c *SearchPath) Hit(_ *dnsserver.Server, _ string, next hit.Handler) hit.Handler {
	return hits{next}
}

type hits struct{ next hit.Handler }

// Answer implements hit.Handler.
func (h hits) Answer(b []byte, q *hit.Question) ([]byte, query.Level, bool) {
	if (q.Type == dns.TypeA || q.Type == dns.TypeAAAA) && q.RD && !q.CD && !q.DO {
		if client, ok := q.Who.(Client); ok {
			if s := client.Search(); s != nil && s.mayBegin(&q.Plain) {
				return b, query.Miss, false
			}
		}
	}
	return h.next.Answer(b, q)
}

// mayBegin reports whether begins may take a plain question apart.
func (s *Search) mayBegin(q *hit.Plain) bool {
	return s.first == nil || q.Within(s.first) && len(q.Name()) > len(s.first)
}
