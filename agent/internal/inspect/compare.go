package inspect

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/internal/dns/forward/kubedns"
	"github.com/neardns/neardns/pkg/steer"
)

// maxCompared is the maximum number of queries whose answers are compared.
const maxCompared = 24

// comparison has the answers of the agent and of kube-dns to the same query.
type comparison struct {
	name           string // name and record type
	agent, kubeDNS reply
}

// reply is the part of a server's answer that is compared.
type reply struct {
	code    string   // NOERROR, NXDOMAIN, ...
	records []string // without TTLs, sorted
	err     error    // why the server did not answer
}

func (r reply) String() string {
	switch {
	case r.err != nil:
		return r.err.Error()
	case len(r.records) > 0:
		return some(r.records)
	case r.code == "NOERROR":
		return "no such record"
	}
	return r.code
}

// failed reports whether the server did not answer or failed. All such replies count as equal, because the kind of failure may vary.
func (r reply) failed() bool { return r.err != nil || r.code == "SERVFAIL" || r.code == "REFUSED" }

// differs reports whether the agent and kube-dns answer differently. Two lists of records count as equal if they share one, because a
// server may give different addresses of a name at each query.
func (c comparison) differs() bool {
	switch {
	case c.agent.failed() && c.kubeDNS.failed():
		return false
	case c.agent.failed() != c.kubeDNS.failed(), c.agent.code != c.kubeDNS.code, (len(c.agent.records) == 0) != (len(c.kubeDNS.records) == 0):
		return true
	case len(c.agent.records) == 0:
		return false
	}
	return !slices.ContainsFunc(c.agent.records, func(r string) bool { return slices.Contains(c.kubeDNS.records, r) })
}

// checkAnswers compares the answers that pods get from the agent with those of kube-dns.
func checkAnswers(f *facts, r *findings) string {
	answered := func(of func(comparison) reply) bool {
		return slices.ContainsFunc(f.compared, func(c comparison) bool { return of(c).err == nil })
	}
	switch {
	case len(f.compared) == 0:
		return "nothing to compare: no query is steered to the agent"
	case f.agentErr != nil || !answered(func(c comparison) reply { return c.agent }):
		return "nothing to compare: no agent answers" // without the agent, its addresses may be routed to another server
	case !answered(func(c comparison) reply { return c.kubeDNS }):
		return "nothing to compare: kube-dns does not answer this host"
	}
	for _, c := range f.compared {
		if c.differs() {
			r.warn("if kube-dns is right, remove upstreams.external (auto) or write [], and remove stubDomains that it has otherwise; a name "+
				"that has just changed differs until its TTL ends", "%s: the agent answers %s, kube-dns (%s) answers %s", c.name, c.agent,
				f.want.Redirects[0].ClusterDNS, c.kubeDNS)
		}
	}
	return fmt.Sprintf("the agent and kube-dns give the same answers to %d queries", len(f.compared))
}

// compare sends the same queries to the agent and to kube-dns, at the steering address and the cluster DNS address of the first redirect.
// The host's rules do not steer those that go to kube-dns.
func (in *Inspector) compare(ctx context.Context, want plan.Plan) []comparison {
	if len(want.Redirects) == 0 || len(want.Addresses()) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	r := want.Redirects[0]
	queries := in.comparedQueries(want)
	out := make([]comparison, len(queries))
	var wg sync.WaitGroup
	for n, q := range queries {
		out[n] = comparison{name: q.name + " " + dns.TypeToString[q.qtype]}
		past := q
		if want.InterceptNode {
			past.mark = steer.Mark // without the mark, the host's rules would steer the query to the agent
		}
		wg.Go(func() { out[n].agent = q.reply(ctx, r.Steering) })
		wg.Go(func() { out[n].kubeDNS = past.reply(ctx, r.ClusterDNS) })
	}
	wg.Wait()
	return out
}

// comparedQueries returns queries by which a difference is likely to be seen: for two names of the cluster, for one outside, and for the
// names in kube-dns's Corefile and in stubDomains; at most maxCompared.
func (in *Inspector) comparedQueries(want plan.Plan) []query {
	reverse, _ := dns.ReverseAddr(want.Redirects[0].ClusterDNS.String()) // cannot fail: it is an address
	out := []query{
		{name: "kubernetes.default.svc." + in.Conf.ClusterDomain + ".", qtype: dns.TypeA},
		{name: "example.com.", qtype: dns.TypeA}, // reserved by IANA (RFC 2606)
		{name: reverse, qtype: dns.TypePTR},
	}
	var names []string
	if text, err := in.ReadFile(in.Conf.Upstreams.Corefile); err == nil {
		names = kubedns.Read(string(text), in.Conf.ClusterDomain).Names
	}
	for domain := range in.Conf.StubDomains {
		if !slices.Contains(names, domain+".") {
			names = append(names, domain+".")
		}
	}
	for _, n := range names {
		// Compare the SOA record too: the zone's own name often has no address, and the SOA shows which server answered.
		out = append(out, query{name: n, qtype: dns.TypeA}, query{name: n, qtype: dns.TypeSOA})
	}
	return out[:min(len(out), maxCompared)]
}

// reply sends the query and returns what is compared: the response code, and the data of the A, AAAA, PTR and SOA records.
func (q query) reply(ctx context.Context, server netip.Addr) reply {
	m, err := q.send(ctx, netip.AddrPortFrom(server, 53))
	if err != nil {
		return reply{err: err}
	}
	out := reply{code: cmp.Or(dns.RcodeToString[m.Rcode], "an unknown code")}
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *dns.A:
			out.records = append(out.records, rr.A.String())
		case *dns.AAAA:
			out.records = append(out.records, rr.AAAA.String())
		case *dns.PTR:
			out.records = append(out.records, rr.Ptr)
		case *dns.SOA:
			out.records = append(out.records, rr.Ns) // without the serial number, which changes
		}
	}
	slices.Sort(out.records)
	return out
}
