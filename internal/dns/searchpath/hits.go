package searchpath

import (
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/msg"
)

// MayComplete reports whether the plugin might complete the query. If so, the fast path must leave the query to the plugin chain.
func MayComplete(q *fastpath.Query) bool {
	if q.Type != dns.TypeA && q.Type != dns.TypeAAAA || !q.RD || q.CD || q.OPT.DO() {
		return false
	}
	client, ok := q.Identity.(Client)
	if !ok {
		return false
	}
	s := client.Search()
	return s != nil && s.mayBegin(&q.Query)
}

// mayBegin reports whether nameOf might accept the query's name: it is below the first suffix, or that suffix has no wire form to
// compare.
func (s *Search) mayBegin(q *msg.Query) bool {
	return s.first == nil || q.IsIn(s.first) && len(q.Name()) > len(s.first)
}
