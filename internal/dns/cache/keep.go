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

// heldRecheck is the maximum of the recheck time for a name whose denial does not count yet (hold_denials).
const heldRecheck = 2 * time.Second

// taken is the result of take.
type taken struct {
	entry     *answers.Entry // what the client gets; nil: the upstream's own answer
	ttl       uint32
	kept      bool // stored
	held      bool // entry is an earlier answer, in place of a denial that does not count yet
	refreshes bool // the answer replaces stale entries (RFC 8767, section 4)
	failure   bool // the upstream's answer is a server failure or, with stale_on_silence, unusable
}

// kind is the kind of an upstream's answer. It decides how the cache treats the answer.
type kind int

const (
	unusable         kind = iota // not cached, for example truncated, a referral, or an error other than SERVFAIL and NOTIMP
	positive                     // the answer to the query
	denial                       // the name does not exist, or has no data of the type
	uncachedPositive             // an answer to the query that must not be cached
	uncachedDenial
	failure // the server cannot answer
)

// denies reports whether an answer of kind k denies that the name, or data of the queried type, exists.
func (k kind) denies() bool { return k == denial || k == uncachedDenial }

// policyFor returns how the cache treats an answer of kind k: whether it is stored, in which class, and its TTL in seconds.
func (c *Cache) policyFor(k kind, res *dns.Msg) (store bool, class answers.Class, ttl uint32) {
	switch k {
	case positive, uncachedPositive:
		return k == positive, answers.Success, c.lifetime(res, answers.Success)
	case failure:
		return true, answers.Denial, uint32(c.failTTL / time.Second)
	}
	return k == denial, answers.Denial, c.lifetime(res, answers.Denial)
}

// take stores an upstream's answer if that is allowed, and returns what the client gets.
func (c *Cache) take(q *fetch, res *dns.Msg) taken {
	k := classify(res, time.Now())
	if k == unusable && !c.onSilence {
		return taken{}
	}
	if !match(q.request, res) {
		if k != unusable {
			q.series.drops.Inc()
		}
		return taken{}
	}
	if c.hold > 0 && k.denies() && q.good != nil {
		if t, ok := c.holdBack(q.good); ok {
			return t
		}
	}
	store, class, ttl := c.policyFor(k, res)
	if store {
		return c.storeAnswer(q, res, k, class, ttl)
	}
	t := c.pass(q, res, class, ttl)
	t.failure = k == unusable
	return t
}

// storeAnswer makes an entry of an answer, and stores it unless its TTL is 0, the query lacks RD, a disable directive names its zone, or
// put refuses it.
func (c *Cache) storeAnswer(q *fetch, res *dns.Msg, k kind, class answers.Class, ttl uint32) taken {
	e := c.entry(q, class, res, ttl)
	if e == nil {
		return taken{}
	}
	t := taken{entry: e, ttl: ttl, failure: k == failure,
		refreshes: k == positive || k == denial || k == failure && c.onSilence}
	if ttl == 0 || !q.query.rd || plugin.Zones(c.except[class]).Matches(q.request.Question[0].Name) != "" {
		return t
	}
	if t.kept = c.put(q, e); !t.kept {
		return t
	}
	success, denied := c.space.Peek(&q.query.key)
	switch {
	case k == positive && denied != nil:
		c.space.Remove(denied)
	case k == denial && success != nil:
		c.space.Remove(success)
	}
	return t
}

// pass handles an answer that is not stored and goes only to the client whose query was forwarded.
func (c *Cache) pass(q *fetch, res *dns.Msg, class answers.Class, ttl uint32) taken {
	t := taken{ttl: ttl, refreshes: true}
	if !q.background {
		return t // the client gets the upstream's own answer
	}
	if !res.Truncated && res.Rcode <= 15 { // otherwise the client that waits sends its own query
		t.entry = c.entry(q, class, res, ttl)
	}
	return t
}

// holdBack returns the earlier answer in place of a denial that has not yet lasted as long as hold_denials demands. It returns false if
// the denial counts.
func (c *Cache) holdBack(good *answers.Entry) (taken, bool) {
	now := c.store.Now()
	if !good.Denied() && time.Duration(-good.Left(now))*time.Second >= max(c.staleFor, c.hold) {
		return taken{}, false // the earlier answer expired too long ago
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

// heldTTL returns the seconds until the denial counts. A reply with the earlier answer has at most this TTL, so that no client keeps it
// longer.
func (c *Cache) heldTTL(good *answers.Entry) uint32 {
	now := c.store.Now()
	left := c.hold - time.Duration(now-good.Deny(now))
	return uint32(max(1, math.Ceil(left.Seconds())))
}

// keepFailure stores that no server answered.
func (c *Cache) keepFailure(q *fetch, r *dns.Msg) *answers.Entry {
	ttl := uint32(c.failTTL / time.Second)
	if ttl == 0 || !q.query.rd || plugin.Zones(c.except[answers.Denial]).Matches(r.Question[0].Name) != "" {
		return nil
	}
	e := c.entry(q, answers.Denial, new(dns.Msg).SetRcode(r, dns.RcodeServerFailure), ttl)
	if e == nil || !c.put(q, e) {
		return nil
	}
	return e
}

// put passes an entry to the store. It returns false, without doing so, for a failure while a denial of the key can be served: the
// server's failure does not make its earlier answer wrong (RFC 8767, section 4).
func (c *Cache) put(q *fetch, e *answers.Entry) bool {
	if failed(e.Rcode()) {
		if _, denial := c.space.Peek(&q.query.key); denial != nil && !failed(denial.Rcode()) {
			if left := denial.Left(c.store.Now()); left > 0 || c.servable(denial, left) {
				return false
			}
		}
	}
	c.bound.Do(c.setBounds)
	for class, n := range c.space.Put(&q.query.key, e) {
		q.series.evictions[class].Add(float64(n))
	}
	return true
}

// setBounds applies the block's limits to its space. It is called when the block begins to serve, not when it is parsed, because the
// configuration may still be refused.
func (c *Cache) setBounds() {
	c.space.SetBounds(c.capacity, max(c.staleFor, 2*c.hold))
}

// entry makes an entry of an answer. If the answer cannot be packed or is not one to the query, it returns nil and counts it as dropped.
func (c *Cache) entry(q *fetch, class answers.Class, res *dns.Msg, ttl uint32) *answers.Entry {
	m := *res
	m.Extra = withoutOPT(res.Extra)
	m.Compress = true
	b, err := m.Pack()
	if err == nil {
		var e *answers.Entry
		if e, err = answers.NewEntry(&q.query.key, class, b, ttl); err == nil {
			return e
		}
	}
	q.series.drops.Inc()
	return nil
}

// match reports whether res answers r.
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
		return slices.Clip(extra) // so that appending does not write into the plugin's own message
	}
	return slices.DeleteFunc(slices.Clone(extra), isOPT)
}

// classify returns the kind of an answer. NOERROR and NXDOMAIN are answers about the name, unless the answer is truncated or a referral.
func classify(m *dns.Msg, now time.Time) kind {
	if m.Truncated || len(m.Question) == 0 || m.Rcode > 15 {
		return unusable
	}
	soa := slices.ContainsFunc(m.Ns, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeSOA })
	nxdomain := m.Rcode == dns.RcodeNameError
	uncached := uncachedDenial
	if answered(m) {
		uncached = uncachedPositive
	}
	if nxdomain && len(m.Answer) > 0 {
		// A CNAME to a name that does not exist (RFC 2308, section 2.1). CoreDNS's Typify knows NXDOMAIN only without answers. Given
		// NOERROR, it still detects zone transfers and expired signatures.
		c := *m
		c.Rcode = dns.RcodeSuccess
		m = &c
	}
	switch t, _ := response.Typify(m, now); {
	case t == response.ServerError:
		return failure
	case t == response.Meta, t == response.Update, t == response.Delegation:
		return unusable
	case t == response.OtherError:
		if m.Rcode == dns.RcodeSuccess || m.Rcode == dns.RcodeNameError {
			return uncached // its signatures have expired
		}
		return unusable
	case nxdomain && soa, t == response.NoData:
		return denial
	case !nxdomain && uncached == uncachedPositive:
		return positive
	case !nxdomain && soa:
		return denial
	}
	return uncached // NXDOMAIN or no data, without the SOA that caching requires (RFC 2308, section 5)
}

// answered reports whether the answer section has a record of the queried type and class. It does not check that aliases lead to that
// record: the upstream has resolved them.
func answered(m *dns.Msg) bool {
	q := m.Question[0]
	return slices.ContainsFunc(m.Answer, func(rr dns.RR) bool {
		h := rr.Header()
		return (q.Qtype == dns.TypeANY || h.Rrtype == q.Qtype) && (q.Qclass == dns.ClassANY || h.Class == q.Qclass)
	})
}

// lifetime returns the TTL of an answer in seconds: the lowest TTL of its records, for a denial at most the SOA's minimum, within the
// configured minimum and maximum of its class.
func (c *Cache) lifetime(m *dns.Msg, class answers.Class) uint32 {
	shortest := uint32(math.MaxInt32)
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			h := rr.Header()
			if h.Rrtype == dns.TypeOPT {
				continue
			}
			shortest = min(shortest, h.Ttl)                              // at most 2^31-1 (RFC 8767, section 4)
			if soa, ok := rr.(*dns.SOA); ok && class == answers.Denial { // RFC 2308, section 5
				shortest = min(shortest, soa.Minttl)
			}
		}
	}
	d := min(max(time.Duration(shortest)*time.Second, c.minTTL[class]), c.maxTTL[class])
	return uint32(d / time.Second)
}
