// Package searchpath is the CoreDNS plugin that walks a pod's search list on the pod's behalf. With ndots:5 a resolver sends eight
// queries or more for one name outside the cluster. If completion is on for the pod, the first of them is answered with the result of the
// whole walk, so that two remain: one for each family.
//
// The walk sees the same answers as the pod would: the plugin comes before the cache, and sends its own queries through the same server,
// cache included. It remembers recent decisions by pod and name. Its answers depend on the client, so no plugin that stores whole answers
// may come before it.
//
// On failure, and whenever resolvers (glibc, musl, Go) could end the walk differently, the query is passed on unchanged.
package searchpath

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/queryinfo"
)

// maxWalk is how long a query waits for a walk before it is passed on unchanged; the walk then queries no further name. Forwarding the
// query may take another 1.9 s, or 4.5 s if the name is slow (package forward). musl retries after 2.5 s, glibc and Go after 5 s.
const maxWalk = 500 * time.Millisecond

// SearchPath is the plugin's handler in one server block.
type SearchPath struct {
	next    plugin.Handler
	memory  *Memory
	metrics *Metrics
}

// Client is a pod, as the listener's Observer knows it. It is the Identity of a Query; queries without one are not completed. Its methods
// are safe for concurrent use.
type Client interface {
	// Search returns the pod's search list if completion is on for the pod and the list is known, else nil. It may be outdated for a moment
	// when pods start or stop.
	Search() *Search
	// SearchNow is Search for the pod that has the address now, which may be another pod. It may cost system calls.
	SearchNow(addr netip.Addr) *Search
}

// Name implements plugin.Handler.
func (c *SearchPath) Name() string { return "searchpath" }

// ServeDNS implements plugin.Handler.
func (c *SearchPath) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if s := c.wanted(ctx, r); s != nil {
		if name, ok := s.nameOf(r.Question[0].Name); ok {
			if server, ok := ctx.Value(dnsserver.Key{}).(*dnsserver.Server); ok {
				if rcode, done := c.complete(ctx, newWalker(server, w), w, r, s, name); done {
					return rcode, nil
				}
			}
		}
	}
	return plugin.NextOrFailure(c.Name(), c.next, ctx, w, r)
}

// wanted returns the search list with which the query may be completed, or nil. Only A and AAAA queries are completed, because a
// walk looks for addresses. A client that validates signatures (DO, CD) could not use an unsigned CNAME.
func (c *SearchPath) wanted(ctx context.Context, r *dns.Msg) *Search {
	q := queryinfo.From(ctx)
	if q == nil {
		return nil
	}
	client, ok := q.Identity.(Client)
	if !ok {
		return nil
	}
	s := client.Search()
	if s == nil || len(r.Question) != 1 || r.Opcode != dns.OpcodeQuery || !r.RecursionDesired || r.CheckingDisabled {
		return nil
	}
	question := r.Question[0]
	if question.Qclass != dns.ClassINET || question.Qtype != dns.TypeA && question.Qtype != dns.TypeAAAA ||
		strings.Contains(question.Name, `\`) {
		return nil
	}
	if o := r.IsEdns0(); o != nil && o.Do() {
		return nil
	}
	if inner(ctx) {
		return nil
	}
	return s
}

// complete answers the first query of a walk with the answer for the name where the walk ends. done is false if it does not, for example
// because resolvers might end the walk elsewhere; the query is then passed on.
func (c *SearchPath) complete(
	ctx context.Context, k *walker, w dns.ResponseWriter, r *dns.Msg, s *Search, name string,
) (rcode int, done bool) {
	// The same query can be a later one of a longer name's walk: the second query for web.shop is the first for web in the namespace
	// shop. Then the first query for the longer name came a moment ago, and the resolver is walking the list itself.
	for _, longer := range s.earlier(r.Question[0].Name) {
		if c.memory.walked(decisionKey{s, strings.ToLower(longer)}) {
			c.metrics.count(resultLater)
			return 0, false
		}
	}
	name = strings.ToLower(name)
	d := c.memory.decide(decisionKey{s, name}, func(e *end) {
		if s.walks(name) {
			k.walk(context.WithoutCancel(ctx), s, name, e)
		}
	})
	switch {
	case d.first:
		c.metrics.count(resultFirst)
		return 0, false
	case d.absent:
		c.metrics.count(resultAbsent)
		return 0, false
	case d.target == "":
		c.metrics.count(resultLeft)
		return 0, false
	}
	found := k.query(ctx, d.target, r.Question[0].Qtype)
	if found == nil || found.Truncated || found.Rcode != dns.RcodeSuccess && found.Rcode != dns.RcodeNameError {
		c.metrics.count(resultLeft)
		return 0, false
	}
	// The client's address may have passed to another pod just now, to which the answer would reveal the first pod's search domains.
	q := queryinfo.From(ctx)
	if client, ok := q.Identity.(Client); !ok || !client.SearchNow(q.Client).Same(s) {
		c.metrics.count(resultLeft)
		return 0, false
	}
	c.metrics.count(resultCompleted)
	_ = w.WriteMsg(answer(r, found, &d.end, c.memory.left(d))) // an error means that the client is gone
	return dns.RcodeSuccess, true
}

// answer makes the answer to r from found, the answer for the name at the end of the walk. The walk's denials are valid for ttl seconds
// more.
func answer(r, found *dns.Msg, d *end, ttl uint32) *dns.Msg {
	m := new(dns.Msg)
	m.SetRcode(r, found.Rcode)
	m.RecursionAvailable = true
	if len(found.Answer) == 0 {
		// If found has no records, add no CNAME either: glibc ends the walk at any answer section that is not empty, even if the answer for
		// the other family was lost (coredns/coredns#7179).
		for _, rr := range d.denial {
			own := dns.Copy(rr) // a plugin before us may change it
			own.Header().Ttl = min(own.Header().Ttl, ttl)
			m.Ns = append(m.Ns, own)
		}
		return m
	}
	for _, rr := range found.Answer {
		ttl = min(ttl, rr.Header().Ttl)
	}
	m.Answer = append([]dns.RR{&dns.CNAME{
		Hdr:    dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: ttl},
		Target: d.target,
	}}, found.Answer...)
	return m
}
