package cache

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/response"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/cache/answers"
)

// heldRecheck is how often a name is asked for again while its denial is not yet believed.
const heldRecheck = 2 * time.Second

// taken is what became of an answer.
type taken struct {
	entry     *answers.Entry // what the client gets; nil: the answer as it came
	ttl       uint32
	kept      bool
	held      bool // entry is the answer of before; what came was a denial that is not believed yet
	refreshes bool // what is stale is said no more (RFC 8767, section 4)
	failure   bool // it says nothing about the name
}

// kind is what an answer says, as far as the cache is concerned.
type kind int

const (
	other    kind = iota // passed on as it came
	positive             // the answer that was asked for
	denies               // that there is such a name, or such data
	news                 // about the name, and must not be kept
	fails
)

// take keeps an answer if it may be kept.
func (c *Cache) take(q *fetch, res *dns.Msg) taken {
	what := classify(res, time.Now())
	if what == other && !c.onSilence {
		return taken{}
	}
	if !match(q.request, res) {
		if what != other {
			q.series.drops.Inc()
		}
		return taken{}
	}
	denied := what == denies || what == news && !answered(res)
	if good := q.good; c.hold > 0 && denied && good != nil {
		if t, ok := c.holdBack(good); ok {
			return t
		}
	}
	switch {
	case what == news && denied && c.preferPositive:
		return taken{}
	case what == news:
		return c.pass(q, res, denied)
	case what == other:
		t := c.pass(q, res, true)
		t.failure = true
		return t
	}
	class, ttl := answers.Success, c.lifetime(res, what)
	if what != positive {
		class = answers.Denial
	}
	e := c.entry(q, class, res, ttl)
	if e == nil {
		return taken{}
	}
	t := taken{entry: e, ttl: ttl, refreshes: what == positive || what == denies && !c.preferPositive || what == fails && c.onSilence, failure: what == fails}
	if ttl == 0 || !q.asked.rd || plugin.Zones(c.except[class]).Matches(q.request.Question[0].Name) != "" {
		return t
	}
	if t.kept = c.put(q, e); !t.kept {
		return t
	}
	success, denial := c.space.Peek(&q.asked.key)
	switch {
	case what == positive && denial != nil:
		c.space.Remove(denial)
	case what == denies && success != nil && !c.preferPositive:
		c.space.Remove(success)
	}
	return t
}

// pass is for what is told and not kept. It goes to the one who asked; it is the upstream's word nevertheless, so what is stale is
// not said any more (RFC 8767, section 4): a name whose address went, an alias that leads elsewhere.
func (c *Cache) pass(q *fetch, res *dns.Msg, denied bool) taken {
	if q.asked.rd { // else the upstream may have said less than it could
		now := c.store.Now()
		success, other := c.space.Peek(&q.asked.key)
		for _, e := range []*answers.Entry{success, other} {
			if e != nil && (e.Left(now) <= 0 || failed(e.Rcode())) {
				c.space.Remove(e)
			}
		}
	}
	if !q.background {
		return taken{} // as it came
	}
	class, what := answers.Success, positive
	if denied {
		class, what = answers.Denial, denies
	}
	t := taken{ttl: c.lifetime(res, what), refreshes: true}
	if !res.Truncated && res.Rcode <= 15 { // else nothing can be said to the one who waits; it asks by itself
		t.entry = c.entry(q, class, res, t.ttl)
	}
	return t
}

// holdBack answers a denial with what was good before, if the operator wants a denial to last before it is believed.
func (c *Cache) holdBack(good *answers.Entry) (taken, bool) {
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
func (c *Cache) heldTTL(good *answers.Entry) uint32 {
	now := c.store.Now()
	left := c.hold - time.Duration(now-good.Deny(now))
	return uint32(max(1, math.Ceil(left.Seconds())))
}

// keepFailure keeps that nobody answered.
func (c *Cache) keepFailure(q *fetch, r *dns.Msg) *answers.Entry {
	ttl := uint32(c.failTTL / time.Second)
	if ttl == 0 || !q.asked.rd || plugin.Zones(c.except[answers.Denial]).Matches(r.Question[0].Name) != "" {
		return nil
	}
	e := c.entry(q, answers.Denial, new(dns.Msg).SetRcode(r, dns.RcodeServerFailure), ttl)
	if e == nil || !c.put(q, e) {
		return nil
	}
	return e
}

// put keeps an entry, unless it is a failure in the place of a denial that can still be said: that the server fails now does
// not make what it said before less true (RFC 8767, section 4).
func (c *Cache) put(q *fetch, e *answers.Entry) bool {
	if failed(e.Rcode()) {
		if _, denial := c.space.Peek(&q.asked.key); denial != nil && !failed(denial.Rcode()) {
			if left := denial.Left(c.store.Now()); left > 0 || c.servable(denial, left) {
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
	c.space.SetBounds(answers.Bounds{Entries: c.capacity, Keep: max(c.staleFor, 2*c.hold)})
}

// entry packs an answer, or counts it as dropped.
func (c *Cache) entry(q *fetch, class answers.Class, res *dns.Msg, ttl uint32) *answers.Entry {
	m := *res
	m.Extra = withoutOPT(res.Extra)
	m.Compress = true
	b, err := m.Pack()
	if err == nil {
		var e *answers.Entry
		if e, err = answers.NewEntry(&q.asked.key, class, b, ttl); err == nil {
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

// classify tells what an answer is. Any NOERROR and any NXDOMAIN is the upstream's word about the name, but for one that is cut
// and for a referral, which only say who else may know.
func classify(m *dns.Msg, now time.Time) kind {
	if m.Truncated || len(m.Question) == 0 || m.Rcode > 15 {
		return other
	}
	soa := slices.ContainsFunc(m.Ns, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeSOA })
	denied := m.Rcode == dns.RcodeNameError
	if denied && len(m.Answer) > 0 {
		// An alias to a name that does not exist (RFC 2308, section 2.1). CoreDNS's library knows only NXDOMAIN without
		// answers, so it is asked about the rest: transfers, signatures that have run out.
		c := *m
		c.Rcode = dns.RcodeSuccess
		m = &c
	}
	switch t, _ := response.Typify(m, now); {
	case t == response.ServerError:
		return fails
	case t == response.Meta, t == response.Update, t == response.Delegation:
		return other
	case t == response.OtherError:
		if m.Rcode == dns.RcodeSuccess || m.Rcode == dns.RcodeNameError {
			return news // its signatures have run out
		}
		return other
	case subnet(m):
		return news
	case denied && soa, t == response.NoData:
		return denies
	case !denied && answered(m):
		return positive
	case !denied && soa:
		return denies
	}
	return news // neither an answer nor, for want of an SOA, a denial (RFC 2308, section 5)
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
	class := answers.Success
	if what == denies {
		class = answers.Denial
	}
	least := uint32(math.MaxInt32)
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			h := rr.Header()
			if h.Rrtype == dns.TypeOPT {
				continue
			}
			least = min(least, h.Ttl)                           // beyond 2^31-1 it is that (RFC 8767, section 4)
			if soa, ok := rr.(*dns.SOA); ok && what == denies { // RFC 2308, section 5
				least = min(least, soa.Minttl)
			}
		}
	}
	d := min(max(time.Duration(least)*time.Second, c.minTTL[class]), c.maxTTL[class])
	return uint32(d / time.Second)
}
