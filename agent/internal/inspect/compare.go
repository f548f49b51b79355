package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
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
	agent, kubeDNS Reply
}

// data returns what is compared of the records: the first word of each, because the serial number in a SOA record changes.
func (r Reply) data() (out []string) {
	for _, record := range r.Records {
		first, _, _ := strings.Cut(record, " ")
		out = append(out, first)
	}
	slices.Sort(out)
	return out
}

func (r Reply) String() string {
	if r.Error == "" && r.Code == "NOERROR" {
		return cmp.Or(some(r.data()), "no such record")
	}
	return cmp.Or(r.Error, r.Code)
}

// failed reports whether the server did not answer or failed. All such replies count as equal, because the kind of failure may vary.
func (r Reply) failed() bool { return r.Error != "" || r.Code == "SERVFAIL" || r.Code == "REFUSED" }

// differs reports whether the agent and kube-dns answer differently. Two lists of records count as equal if they share one, because a
// server may give different addresses of a name at each query.
func (c comparison) differs() bool {
	agent, kubeDNS := c.agent.data(), c.kubeDNS.data()
	switch {
	case c.agent.failed() && c.kubeDNS.failed():
		return false
	case c.agent.failed() != c.kubeDNS.failed(), c.agent.Code != c.kubeDNS.Code:
		return true
	case len(agent) == 0 && len(kubeDNS) == 0:
		return false
	}
	return !slices.ContainsFunc(agent, func(r string) bool { return slices.Contains(kubeDNS, r) })
}

// checkAnswers compares the answers that pods get from the agent with those of kube-dns.
func checkAnswers(f *facts, r *findings) string {
	answered := func(of func(comparison) Reply) bool {
		return slices.ContainsFunc(f.compared, func(c comparison) bool { return of(c).Error == "" })
	}
	switch {
	case len(f.compared) == 0:
		return "nothing to compare: no query is steered to the agent"
	case f.agentErr != nil || !answered(func(c comparison) Reply { return c.agent }):
		return "nothing to compare: no agent answers" // without the agent, its addresses may be routed to another server
	case !answered(func(c comparison) Reply { return c.kubeDNS }):
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
		wg.Go(func() { out[n].agent = q.timed(ctx, "cache", "agent", r.Steering) })
		wg.Go(func() { out[n].kubeDNS = past.timed(ctx, "kube-dns", "kube-dns", r.ClusterDNS) })
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
