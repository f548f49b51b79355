package inspect

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/internal/dns/forward/kubedns"
	"github.com/neardns/neardns/pkg/steer"
)

// maxCompared limits the queries that are compared.
const maxCompared = 24

// Comparison has what the agent and kube-dns answer to the same query.
type Comparison struct {
	Name           string // and type
	Agent, KubeDNS Reply
	KubeDNSAt      netip.Addr // the cluster DNS address
}

// Reply is what a server answered.
type Reply struct {
	Code    string   // NOERROR, NXDOMAIN, ...
	Records []string // without TTLs, sorted
	Err     string   // why there is no answer
}

func (r Reply) String() string {
	switch {
	case r.Err != "":
		return r.Err
	case len(r.Records) > 0:
		return some(r.Records)
	case r.Code == "NOERROR":
		return "no such record"
	}
	return r.Code
}

// failed reports whether the reply has no information. How a server fails, and after how long, is no difference.
func (r Reply) failed() bool { return r.Err != "" || r.Code == "SERVFAIL" || r.Code == "REFUSED" }

// differs reports whether pods get another answer from the agent than from kube-dns. Servers rotate the addresses of a name with many:
// two answers that share one are the same.
func (c Comparison) differs() bool {
	switch {
	case c.Agent.failed() && c.KubeDNS.failed():
		return false
	case c.Agent.failed() != c.KubeDNS.failed(), c.Agent.Code != c.KubeDNS.Code, (len(c.Agent.Records) == 0) != (len(c.KubeDNS.Records) == 0):
		return true
	case len(c.Agent.Records) == 0:
		return false
	}
	return !slices.ContainsFunc(c.Agent.Records, func(r string) bool { return slices.Contains(c.KubeDNS.Records, r) })
}

// compare sends the same queries to the agent, at an address of its own, and to kube-dns, at the cluster DNS address and past our rules.
func (in *Inspector) compare(ctx context.Context, want plan.Plan) []Comparison {
	if len(want.Redirects) == 0 || len(want.Addresses()) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	r := want.Redirects[0]
	queries := in.comparedQueries(want)
	out := make([]Comparison, len(queries))
	var wg sync.WaitGroup
	for n, q := range queries {
		out[n] = Comparison{Name: q.name + " " + dns.TypeToString[q.qtype], KubeDNSAt: r.ClusterDNS}
		past := q
		if want.InterceptNode {
			past.mark = steer.Mark // else the host's rules would lead the query to the agent
		}
		wg.Go(func() { out[n].Agent = q.reply(ctx, r.Steering) })
		wg.Go(func() { out[n].KubeDNS = past.reply(ctx, r.ClusterDNS) })
	}
	wg.Wait()
	return out
}

// comparedQueries chooses names that show a difference if there is one: the cluster's own, one outside, and those that kube-dns's
// Corefile and the configuration name.
func (in *Inspector) comparedQueries(want plan.Plan) []query {
	reverse, _ := dns.ReverseAddr(want.Redirects[0].ClusterDNS.String()) // it is an address
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
		// The SOA shows which server answers for a zone whose top has no address.
		out = append(out, query{name: n, qtype: dns.TypeA}, query{name: n, qtype: dns.TypeSOA})
	}
	return out[:min(len(out), maxCompared)]
}

// reply takes from an answer what is compared: the code, and the records without their TTLs.
func (q query) reply(ctx context.Context, server netip.Addr) Reply {
	m, err := q.ask(ctx, netip.AddrPortFrom(server, 53))
	if err != nil {
		return Reply{Err: err.Error()}
	}
	out := Reply{Code: cmp.Or(dns.RcodeToString[m.Rcode], "an unknown code")}
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *dns.A:
			out.Records = append(out.Records, rr.A.String())
		case *dns.AAAA:
			out.Records = append(out.Records, rr.AAAA.String())
		case *dns.PTR:
			out.Records = append(out.Records, rr.Ptr)
		case *dns.SOA:
			out.Records = append(out.Records, rr.Ns) // not the serial, which counts up
		}
	}
	slices.Sort(out.Records)
	return out
}
