package cache_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
)

// latency is what any query to the upstream takes at least, so that an answer from the cache, which takes no time at
// all on the scenario's clock, can be distinguished from one that waited.
const latency = time.Millisecond

var errNoReply = errors.New("no reply from the upstream")

// scripted is the upstream of a scenario: the last plugin of the chain. It calls itself "forward", as the real one does,
// by which CoreDNS lets queries of class CH pass.
type scripted struct {
	mu      sync.Mutex // guards the fields below
	rules   []*rule
	mood    mood
	asked   []dns.Question
	strange []string // queries that no rule covers
}

// Name implements plugin.Handler.
func (u *scripted) Name() string { return "forward" }

func (u *scripted) add(r *rule) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.rules = append(u.rules, r)
}

func (u *scripted) feel(m mood) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mood = m
}

// count is how many queries of a kind came so far.
func (u *scripted) count(a *upstreamQueries) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := 0
	for _, q := range u.asked {
		if a.name == "" || strings.EqualFold(q.Name, a.name) && q.Qtype == a.qtype && q.Qclass == a.class {
			n++
		}
	}
	return n
}

// covering returns the latest rule that covers a query. The caller holds mu.
func (u *scripted) covering(q dns.Question) *rule {
	for _, r := range slices.Backward(u.rules) {
		if r.covers(q) {
			return r
		}
	}
	return nil
}

// complaints returns the queries that no rule covered, and forgets them.
func (u *scripted) complaints() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.strange
	u.strange = nil
	return s
}

// ServeDNS implements plugin.Handler as forward does: an upstream that does not answer is an error and nothing written.
func (u *scripted) ServeDNS(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if len(r.Question) == 0 {
		return dns.RcodeServerFailure, errNoReply
	}
	q := r.Question[0]
	u.mu.Lock()
	u.asked = append(u.asked, q)
	m, found := u.mood, u.covering(q)
	if found == nil && !m.fails && !m.refuses {
		u.strange = append(u.strange, fmt.Sprintf("the upstream was asked %s %s %s, of which the scenario says nothing",
			q.Name, dns.ClassToString[q.Qclass], dns.TypeToString[q.Qtype]))
	}
	u.mu.Unlock()

	wait := latency + m.slow
	if found != nil {
		wait += found.slow
	}
	<-time.After(wait)
	switch {
	case m.fails, found != nil && found.reply == nil && !m.refuses:
		return dns.RcodeServerFailure, plugin.Error("forward", errNoReply)
	case m.refuses, found == nil:
		found = &rule{reply: &upstreamReply{rcode: dns.RcodeRefused}}
	}
	reply, err := found.message(r)
	if err != nil {
		return dns.RcodeServerFailure, plugin.Error("forward", err)
	}
	if err := w.WriteMsg(reply); err != nil {
		return dns.RcodeServerFailure, plugin.Error("forward", err)
	}
	return dns.RcodeSuccess, nil
}

// message returns the rule's reply to a query, packed and unpacked as on the wire.
func (r *rule) message(to *dns.Msg) (*dns.Msg, error) {
	m := new(dns.Msg).SetReply(to)
	opt := to.IsEdns0()
	do := opt != nil && opt.Do()
	m.Rcode, m.Authoritative, m.Truncated, m.RecursionAvailable = r.reply.rcode, r.reply.aa, r.reply.tc, r.reply.ra
	// RFC 6840, 5.8: a resolver sets AD only where the query signals that it would be understood.
	m.AuthenticatedData = r.reply.ad && (do || to.AuthenticatedData)
	if r.instead != nil {
		m.Question[0] = *r.instead
	}
	for _, rec := range r.reply.records {
		if rec.signed && !do {
			continue
		}
		section := []*[]dns.RR{&m.Answer, &m.Ns, &m.Extra}[rec.section]
		*section = append(*section, rec.rr(to.Question[0].Name))
	}
	if opt != nil {
		m.SetEdns0(1232, do)
		if r.reply.cookie {
			o := m.IsEdns0()
			o.Option = append(o.Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "24a5ac1c5d4f3e2b0102030405060708"})
		}
	}
	wire, err := m.Pack()
	if err != nil {
		return nil, err
	}
	back := new(dns.Msg)
	return back, back.Unpack(wire)
}
