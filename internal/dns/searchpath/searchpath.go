// Package searchpath is the CoreDNS plugin that walks a pod's search list on the pod's behalf. With ndots:5 a resolver sends up to ten
// queries for one name outside the cluster. For a pod that opts in, the first of them is answered with the result of the whole walk, so
// that two remain: one for each family.
//
// It guarantees that the pod and its walk see the same: it stands in front of the cache and queries the server itself, cache included. It
// remembers recent decisions by search list and name. Its answers depend on the client, so a plugin that stores whole answers must not
// stand in front of it.
//
// On failure, and whenever the resolver's own walk could end differently in any libc, the query is passed on as if this plugin were not
// there.
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

// maxWalk is how long a query waits for a walk before it is passed on, which may take another 1.9 s, or 4.5 if the name is slow (package
// forward). musl retries after 2.5 s, glibc and Go after five. The walk's own queries are then in progress or in the cache, for the pod's
// own walk.
const maxWalk = 500 * time.Millisecond

// SearchPath is the plugin in one server block.
type SearchPath struct {
	next    plugin.Handler
	memory  *Memory
	metrics *Metrics
}

// Client is a pod, as the observer of queries knows it: the Identity of a Query. Queries without one are not completed. Its methods are
// safe for concurrent use.
type Client interface {
	// Search returns the pod's search list if the pod opts in, else nil. It may lag a moment behind pods that come and go.
	Search() *Search
	// SearchNow returns the search list of the pod that has the address now, which may be another one. It may cost system calls.
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

// wanted returns the search list by which the query may be completed; nil for none. Only queries for addresses are: no resolver walks for
// other types. A client that checks signatures (DO, CD) cannot use an unsigned CNAME.
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

// complete answers the first query of a walk with the walk's end, if there is one that every resolver would come to.
func (c *SearchPath) complete(
	ctx context.Context, k *walker, w dns.ResponseWriter, r *dns.Msg, s *Search, name string,
) (rcode int, done bool) {
	// The same query can be a later one of a longer name's walk: web.shop's second is the first of web in the namespace shop. Then the
	// longer name's first query was here just now, and the resolver is walking by itself.
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
	// Its address may have been another pod's until just now. The answer would then reveal this pod's domains to it.
	q := queryinfo.From(ctx)
	if client, ok := q.Identity.(Client); !ok || !client.SearchNow(q.Client).Same(s) {
		c.metrics.count(resultLeft)
		return 0, false
	}
	c.metrics.count(resultCompleted)
	_ = w.WriteMsg(answer(r, found, &d.end, c.memory.left(d))) // like CoreDNS's cache: the client is gone
	return dns.RcodeSuccess, true
}

// answer makes the answer to r from what was found at the end of the walk, which is known for ttl seconds more.
func answer(r, found *dns.Msg, d *end, ttl uint32) *dns.Msg {
	m := new(dns.Msg)
	m.SetRcode(r, found.Rcode)
	m.RecursionAvailable = true
	if len(found.Answer) == 0 {
		// No CNAME without a record behind it: for glibc, an answer section that is not empty ends the walk, even if the address of the
		// other family got lost (coredns/coredns#7179).
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
