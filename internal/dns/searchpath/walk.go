package searchpath

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/queryinfo"
	"github.com/neardns/neardns/internal/dns/responsewriter"
)

// walker sends queries for one client to the server that received the client's query. It may continue after that query is answered, so it
// keeps no reference to it.
type walker struct {
	server *dnsserver.Server
	client responsewriter.Base
}

// newWalker returns a walker for a client's query. Its queries have the client's address, so that they count for the client's share of
// misses. They seem to come over TCP, so that no answer is truncated.
func newWalker(server *dnsserver.Server, client dns.ResponseWriter) *walker {
	return &walker{server, responsewriter.Base{Local: overTCP(client.LocalAddr()), Remote: overTCP(client.RemoteAddr())}}
}

func overTCP(a net.Addr) net.Addr {
	var at netip.AddrPort
	switch a := a.(type) {
	case *net.UDPAddr:
		at = a.AddrPort()
	case *net.TCPAddr:
		at = a.AddrPort()
	}
	return net.TCPAddrFromAddrPort(at)
}

// inner reports whether this server sent the query to itself: by this plugin, or by another, for example for a CNAME's target.
func inner(ctx context.Context) bool {
	n, _ := ctx.Value(dnsserver.LoopKey{}).(int)
	return n > 0
}

// walk queries the names of the search list in order, until one has addresses, until resolvers would differ about the next step, or until
// maxWalk is over. It queries A and AAAA for each name, because a resolver decides by both; both of the client's queries then get the same
// decision. Below the cluster's suffixes, one denial is enough for all names that end in the same label: for each name in com, that of
// com.shop.svc.cluster.local, which is usually in the cache.
//
// glibc (2.36, res_search), musl (1.2.3, name_from_dns_search) and Go (1.25, goLookupIPCNAMEOrder) agree on this: a name that has an
// address in one family ends the walk, and a name that does not exist in either family continues it. At a name without addresses, and at
// SERVFAIL, musl stops and the others continue; if the name has a CNAME but no addresses, glibc stops too. If one family's answer denies a
// name that the other family has, musl continues; with completion it does so too, because it gets both answers.
func (k *walker) walk(ctx context.Context, s *Search, name string, d *end) {
	begun := time.Now()
	ctx = queryinfo.With(ctx, nil) // no client gets these answers
	ttl := uint32(maxKeep / time.Second)
	for i, step := range s.steps(name) {
		if len(step) > maxName || time.Since(begun) > maxWalk {
			return
		}
		if parent := s.parentOf(name, step); parent != "" {
			if m := k.query(ctx, parent, dns.TypeA); read(m, dns.TypeA) == absent && len(m.Answer) == 0 { // with a CNAME, parent itself would exist
				soa, good := denial(m)
				if i == 0 {
					d.denial = soa
				}
				ttl = min(ttl, good)
				continue
			}
		}
		v4, v6 := k.both(ctx, step)
		one, other := read(v4, dns.TypeA), read(v6, dns.TypeAAAA)
		switch {
		case one == unclear || other == unclear:
			return
		case one == has || other == has:
			d.target, d.first, d.ttl = step, i == 0, ttl
			return
		case one != absent || other != absent:
			return
		}
		soa, good := denial(v4)
		if i == 0 {
			d.denial = soa
		}
		_, also := denial(v6)
		ttl = min(ttl, good, also)
	}
	d.absent, d.ttl = true, ttl
}

// both queries both families at once.
func (k *walker) both(ctx context.Context, name string) (v4, v6 *dns.Msg) {
	done := make(chan struct{})
	go func() { // ends with the query, which has its own time limit
		defer close(done)
		v6 = k.query(ctx, name, dns.TypeAAAA)
	}()
	v4 = k.query(ctx, name, dns.TypeA)
	<-done
	return v4, v6
}

// query sends a query to the server as the client would. It returns nil if no answer was written.
func (k *walker) query(ctx context.Context, name string, qtype uint16) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	n, _ := ctx.Value(dnsserver.LoopKey{}).(int)
	w := &responsewriter.Capture{Base: k.client}
	k.server.ServeDNS(context.WithValue(ctx, dnsserver.LoopKey{}, n+1), w, m) // recovers from panics
	return w.Msg
}

// outcome is what an answer shows about a name.
type outcome int

const (
	unclear outcome = iota // a failure, or truncated
	absent                 // NXDOMAIN: the name, or the target of its CNAME, does not exist
	empty                  // it exists without addresses of the family
	alias                  // it is a CNAME to a name without addresses of the family
	has                    // it has an address of the family, perhaps by a CNAME
)

func read(m *dns.Msg, qtype uint16) outcome {
	switch {
	case m == nil || m.Truncated:
		return unclear
	case m.Rcode == dns.RcodeNameError:
		return absent
	case m.Rcode != dns.RcodeSuccess:
		return unclear
	}
	for _, rr := range m.Answer {
		if rr.Header().Rrtype == qtype {
			return has
		}
	}
	if len(m.Answer) == 0 {
		return empty
	}
	return alias
}

// denial returns the SOA of a denial, and for how many seconds the denial is valid (RFC 2308, section 5).
func denial(m *dns.Msg) (soa []dns.RR, ttl uint32) {
	for _, rr := range m.Ns {
		if s, ok := rr.(*dns.SOA); ok {
			return []dns.RR{s}, min(s.Hdr.Ttl, s.Minttl)
		}
	}
	return nil, 0
}
