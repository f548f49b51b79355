package searchpath

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/queryinfo"
)

// Hit returns who leaves to the chain what ServeDNS would complete, and the rest to next.
func (c *SearchPath) Hit(_ *dnsserver.Server, _ string, next fastpath.Handler) fastpath.Handler {
	return hits{next}
}

type hits struct{ next fastpath.Handler }

// Answer implements hit.Handler.
func (h hits) Answer(b []byte, q *fastpath.Question) ([]byte, queryinfo.Level, bool) {
	if (q.Type == dns.TypeA || q.Type == dns.TypeAAAA) && q.RD && !q.CD && !q.DO {
		if client, ok := q.Who.(Client); ok {
			if s := client.Search(); s != nil && s.mayBegin(&q.Plain) {
				return b, queryinfo.Miss, false
			}
		}
	}
	return h.next.Answer(b, q)
}

// mayBegin reports whether begins may take a plain question apart.
func (s *Search) mayBegin(q *fastpath.Plain) bool {
	return s.first == nil || q.Within(s.first) && len(q.Name()) > len(s.first)
}
