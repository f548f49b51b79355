package cache

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/response"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/agent/internal/wire"
)

// heldRecheck is how often a name is asked for again while its denial is not yet believed.
const heldRecheck = 2 * time.Second

// taken is what became of an answer.
type taken struct {
	entry     *wire.Entry // what the client gets; nil: the answer as it came
	ttl       uint32
	kept      bool
	held      bool // entry is the answer of before; what came was a denial that is not believed yet
	refreshes bool // it replaces what is stale (RFC 8767, section 4)
}

// kind is what an answer says, as far as the cache is concerned.
type kind int

const (
	other   kind = iota // passed on as it came
	answers             // the question
	denies              // that there is such a name, or such data
	empty               // neither an answer nor, for want of an SOA, a denial: not kept (RFC 2308, section 5)
	fails
)

// take keeps an answer if it may be kept.
func (c *Cache) take(q *fetch, res *dns.Msg) taken {
	what := classify(res, time.Now())
	if what == other {
		return taken{}
	}
	if !match(q.request, res) {
		q.series.drops.Inc()
		return taken{}
	}
	good := q.good
	if c.hold > 0 && (what == denies || what == empty) && good != nil {
		if t, ok := c.holdBack(good); ok {
			return t
		}
	}
	if what == empty {
		return c.takeEmpty(q, res)
	}
	class, ttl := wire.Success, c.lifetime(res, what)
	if what != answers {
		class = wire.Denial
	}
	e := c.entry(q, class, res, ttl)
	if e == nil {
		return taken{}
	}
	t := taken{entry: e, ttl: ttl, refreshes: what == answers || what == denies && !c.preferPositive}
	if ttl == 0 || !q.asked.rd || plugin.Zones(c.except[class]).Matches(q.request.Question[0].Name) != "" {
		return t
	}
	if t.kept = c.put(q, e); !t.kept {
		return t
	}
	success, denial := c.space.Peek(&q.asked.key)
	switch {
	case what == answers && denial != nil:
		c.space.Remove(denial)
	case what == denies && success != nil && !c.preferPositive:
		c.space.Remove(success)
	}
	return t
}

// takeEmpty is for an answer without content and without the means to keep it. It goes to the one who asked; it is news
// nevertheless, so what is stale is not said any more.
func (c *Cache) takeEmpty(q *fetch, res *dns.Msg) taken {
	if c.preferPositive {
		return taken{}
	}
	if q.good != nil && q.good.Left(c.store.Now()) <= 0 {
		c.space.Remove(q.good)
	}
	if !q.background {
		return taken{} // as it came
	}
	ttl := c.lifetime(res, denies)
	return taken{entry: c.entry(q, wire.Denial, res, ttl), ttl: ttl, refreshes: true}
}

// holdBack answers a denial with what was good before, if the operator wants a denial to last before it is believed.
func (c *Cache) holdBack(good *wire.Entry) (taken, bool) {
	now := c.store.Now()
	if !good.Denied() && time.Duration(-good.Left(now))*time.Second >= max(c.staleFor, c.hold) {
		return taken{}, false // it ended long ago
	}
	if time.Duration(now-good.Deny(now)) >= c.hold {
		return taken{}, false
	}
	ttl := c.heldTTL(good)
	if left := good.Left(now); left > 0 {
		ttl = min(ttl, uint32(left))
	}
	return taken{entry: good, ttl: ttl, held: true}, true
}

// heldTTL is what is left of the time for which the denial is not believed, so that no client keeps the answer for longer.
func (c *Cache) heldTTL(good *wire.Entry) uint32 {
	now := c.store.Now()
	left := c.hold - time.Duration(now-good.Deny(now))
	return uint32(max(1, math.Ceil(left.Seconds())))
}

// keepFailure keeps that nobody answered.
func (c *Cache) keepFailure(q *fetch, r *dns.Msg) *wire.Entry {
	ttl := uint32(c.failTTL / time.Second)
	if ttl == 0 || !q.asked.rd || plugin.Zones(c.except[wire.Denial]).Matches(r.Question[0].Name) != "" {
		return nil
	}
	e := c.entry(q, wire.Denial, new(dns.Msg).SetRcode(r, dns.RcodeServerFailure), ttl)
	if e == nil || !c.put(q, e) {
		return nil
	}
	return e
}

// put keeps an entry, unless it is a failure in the place of a denial that can still be said: that the server fails now does
// not make what it said before less true (RFC 8767, section 4).
func (c *Cache) put(q *fetch, e *wire.Entry) bool {
	if failed(e.Rcode()) {
		if _, denial := c.space.Peek(&q.asked.key); denial != nil && !failed(denial.Rcode()) {
			if left := denial.Left(c.store.Now()); left > 0 || c.sayable(left) {
				return false
			}
		}
	}
	c.bound.Do(c.setBounds)
	for class, n := range c.space.Put(&q.asked.key, e) {
		q.series.evictions[class].Add(float64(n))
	}
	return true
}

// setBounds is for when the block begins to serve, not when it is read: a configuration may still be refused.
func (c *Cache) setBounds() {
	c.space.SetBounds(wire.Bounds{Entries: c.capacity, Keep: max(c.staleFor, 2*c.hold)})
}

// entry packs an answer, or counts it as dropped.
func (c *Cache) entry(q *fetch, class wire.Class, res *dns.Msg, ttl uint32) *wire.Entry {
	m := *res
	m.Extra = withoutOPT(res.Extra)
	m.Compress = true
	b, err := m.Pack()
	if err == nil {
		var e *wire.Entry
		if e, err = wire.NewEntry(&q.asked.key, class, b, ttl); err == nil {
			return e
		}
	}
	q.series.drops.Inc()
	return nil
}

// match reports whether res answers r's question.
func match(r, res *dns.Msg) bool {
	if len(res.Question) != 1 || !res.Response || res.Opcode != dns.OpcodeQuery {
		return false
	}
	a, b := r.Question[0], res.Question[0]
	return a.Qtype == b.Qtype && a.Qclass == b.Qclass && strings.EqualFold(a.Name, b.Name)
}

func withoutOPT(extra []dns.RR) []dns.RR {
	isOPT := func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT }
	if !slices.ContainsFunc(extra, isOPT) {
		return slices.Clip(extra) // appending must not write into a plugin's own message
	}
	return slices.DeleteFunc(slices.Clone(extra), isOPT)
}

func classify(m *dns.Msg, now time.Time) kind {
	if m.Truncated || len(m.Question) == 0 || m.Rcode > 15 || subnet(m) {
		return other
	}
	soa := slices.ContainsFunc(m.Ns, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeSOA })
	if m.Rcode == dns.RcodeNameError && len(m.Answer) > 0 {
		// An alias to a name that does not exist (RFC 2308, section 2.1). CoreDNS's library knows only NXDOMAIN without
		// answers, so it is asked about the rest: transfers, signatures that have run out.
		c := *m
		c.Rcode = dns.RcodeSuccess
		m = &c
		if t, _ := response.Typify(m, now); t == response.NoError && soa {
			return denies
		}
		return other
	}
	switch t, _ := response.Typify(m, now); {
	case t == response.ServerError:
		return fails
	case t == response.NameError && soa, t == response.NoData && soa:
		return denies
	case t == response.NameError:
		return empty
	case t == response.NoError && answered(m):
		return answers
	case t == response.NoError && soa:
		return denies
	case t == response.NoError && len(m.Answer) == 0:
		return empty
	}
	return other
}

// subnet reports whether the answer is for a part of the Internet alone (RFC 7871, section 7.3.1).
func subnet(m *dns.Msg) bool {
	o := m.IsEdns0()
	return o != nil && slices.ContainsFunc(o.Option, func(e dns.EDNS0) bool {
		s, ok := e.(*dns.EDNS0_SUBNET)
		return ok && s.SourceScope > 0
	})
}

// answered reports whether the answer section has what was asked for, at the end of the aliases that begin at the
// question's name (RFC 1034, section 3.6.2).
func answered(m *dns.Msg) bool {
	q := m.Question[0]
	at := func(rr dns.RR, name string) bool {
		h := rr.Header()
		return (q.Qclass == dns.ClassANY || h.Class == q.Qclass) && strings.EqualFold(h.Name, name)
	}
	if q.Qtype == dns.TypeANY {
		return slices.ContainsFunc(m.Answer, func(rr dns.RR) bool { return at(rr, q.Name) })
	}
	name := q.Name
	for range len(m.Answer) + 1 { // more steps than records: a loop
		target := ""
		for _, rr := range m.Answer {
			alias, ok := rr.(*dns.CNAME)
			if !ok || !at(rr, name) {
				continue
			}
			if target != "" && !strings.EqualFold(target, alias.Target) {
				return false // RFC 2181, section 10.1: an alias has one canonical name
			}
			target = alias.Target
		}
		if q.Qtype == dns.TypeCNAME {
			return target != ""
		}
		if target == "" {
			return slices.ContainsFunc(m.Answer, func(rr dns.RR) bool { return rr.Header().Rrtype == q.Qtype && at(rr, name) })
		}
		name = target
	}
	return false
}

// lifetime is for how many seconds an answer is kept: as long as its shortest record, within the operator's bounds.
func (c *Cache) lifetime(m *dns.Msg, what kind) uint32 {
	if what == fails {
		return uint32(c.failTTL / time.Second)
	}
	class := wire.Success
	if what == denies {
		class = wire.Denial
	}
	least := uint32(math.MaxInt32)
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			h := rr.Header()
			if h.Rrtype == dns.TypeOPT {
				continue
			}
			ttl := h.Ttl
			if ttl > math.MaxInt32 { // RFC 2181, section 8
				ttl = 0
			}
			least = min(least, ttl)
			if soa, ok := rr.(*dns.SOA); ok && what == denies { // RFC 2308, section 5
				least = min(least, soa.Minttl)
			}
		}
	}
	d := min(max(time.Duration(least)*time.Second, c.minTTL[class]), c.maxTTL[class])
	return uint32(d / time.Second)
}
