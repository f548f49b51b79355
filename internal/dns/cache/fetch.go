package cache

import (
	"context"
	"errors"
	"net"
	"runtime/debug"
	"strings"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics/vars"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/responsewriter"
)

// maxFollow is how long a query waits for the answer to an equal query in flight before it is forwarded itself. Forwarding usually ends
// sooner: package forward takes at most 4.5 s, and in a snippet, or an Override with Binds, CoreDNS's forward plugin gets a limit of 4 s
// (directive cancel).
const maxFollow = 5 * time.Second

// inFlight is the context key of a query whose answer others may wait for. A plugin may send a query to its own server, for example for a
// CNAME's target. That query must not wait for the one that caused it.
type inFlight struct{}

// miss forwards a query. Equal queries with RD that arrive meanwhile wait for its answer. They share it if it is stored, if it is an
// earlier answer in place of a denial (hold_denials), or if it is a failure because of a limit of this process. Any other answer is only
// for the client whose query was forwarded.
func (c *Cache) miss(ctx context.Context, w dns.ResponseWriter, r *dns.Msg, a *query, good *answers.Entry, s *series) (int, error) {
	q := &fetch{ResponseWriter: w, cache: c, query: *a, request: r, good: good, series: s}
	if a.rd && ctx.Value(inFlight{}) == nil {
		f, leads := c.flights.join(a.key.Bytes(), c.store.Now())
		if !leads {
			if f.follow(ctx) && f.kept {
				c.reply(w, r, &q.query, f.entry, f.left(c.store.Now()))
				return dns.RcodeSuccess, nil
			}
		} else {
			q.flight = f
			defer c.flights.end(f)
			// Another query may have stored the answer after this one's lookup.
			if e, left := c.look(&q.query.key); left > 0 {
				f.settle(e, e.TTL(), true, true)
				c.reply(w, r, &q.query, e, uint32(left))
				return dns.RcodeSuccess, nil
			}
		}
	}
	return q.run(ctx)
}

// refresh starts an upstream query for an entry in the background, unless one with its key is in flight; leads is true if it started one. w
// is the writer of the client whose query found the entry expired; otherwise nil. f is nil if too many refreshes are in flight.
func (c *Cache) refresh(
	ctx context.Context, w dns.ResponseWriter, r *dns.Msg, a *query, e *answers.Entry, s *series,
) (f *flight, leads bool) {
	f, leads = c.flights.join(a.key.Bytes(), c.store.Now())
	if !leads {
		return f, false
	}
	select {
	case c.background <- struct{}{}:
	default:
		c.flights.end(f)
		return nil, false
	}
	s.prefetches.Inc()
	// Set RD even if the client did not: the answer is for all clients, and only an answer to a query with RD is stored.
	r = r.Copy()
	q := &fetch{cache: c, query: *a, request: r, flight: f, series: s, background: true}
	q.query.rd = true
	if e.Class() == answers.Success {
		q.good = e
	}
	// A refresh for which no client waits seems to come over TCP, so that its answer is not truncated.
	client := &responsewriter.Capture{Base: responsewriter.Base{Local: &net.TCPAddr{}, Remote: &net.TCPAddr{}}}
	if w != nil { // copied, because the client may be gone before the answer comes
		client.Base = responsewriter.Base{Local: w.LocalAddr(), Remote: w.RemoteAddr()}
	}
	q.ResponseWriter = client
	ctx = context.WithoutCancel(ctx)
	go func() { // ends with the upstream's own deadlines
		defer func() { <-c.background }()
		defer c.flights.end(f)
		defer func() {
			// No caller recovers from a panic in this goroutine, and a panic over one name must not end the process.
			if p := recover(); p != nil {
				vars.Panic.Inc()
				clog.NewWithPlugin(c.Name()).Errorf("Recovered from panic while refreshing %q: %v\n%s", r.Question[0].Name, p, debug.Stack())
				e.Fail(c.store.Now(), false)
			}
		}()
		_, err := q.run(ctx)
		switch now := c.store.Now(); {
		case f.refreshed && !q.failure:
		case q.written:
			e.Fail(now, false)
		case err != nil:
			e.Fail(now, true)
		} // else no plugin answered, for example because limit refused the query; the next one may retry at once
	}()
	return f, true
}

// fetch is one query to the upstream, and the ResponseWriter that receives the answer.
type fetch struct {
	dns.ResponseWriter // the client's; for a background refresh a stand-in that is never written to

	cache      *Cache
	query      query
	request    *dns.Msg       // the client's; not changed
	good       *answers.Entry // the key's success entry before this query, for hold_denials; may be nil
	flight     *flight        // nil: no other query waits for this answer
	series     *series
	background bool
	written    bool
	failure    bool // see taken.failure
	plain      bool // the upstream has refused EDNS for this query
}

// run forwards the query. If no server answers, it stores that failure (RFC 9520, section 3.2), unless a limit of this process was the
// reason.
func (q *fetch) run(ctx context.Context) (int, error) {
	c := q.cache
	inner := ctx
	if q.flight != nil {
		inner = context.WithValue(ctx, inFlight{}, true)
	}
	r := q.upstreamQuery()
	if c.timed && !q.background {
		c.ahead.missed()
	}
	code, err := plugin.NextOrFailure(c.Name(), c.next, inner, q, r)
	if q.plain && !q.written {
		r = q.upstreamQuery()
		code, err = plugin.NextOrFailure(c.Name(), c.next, inner, q, r)
	}
	switch {
	case q.written:
	case err == nil: // no plugin wrote an answer: CoreDNS answers with the returned code
	case code == dns.RcodeServerFailure && ctx.Err() == nil:
		c.health.silence()
		var own interface{ Limit() bool }
		if errors.As(err, &own) && own.Limit() {
			// A limit of this process ended the query, for example its time limit, so the upstream might still have answered. The failure
			// is not stored, because the next query may be answered, but equal queries that wait get it too.
			if e := c.entry(q, answers.Denial, new(dns.Msg).SetRcode(r, dns.RcodeServerFailure), 0); e != nil && q.flight != nil {
				q.flight.settle(e, 0, true, false)
			}
			return code, err
		}
		if e := c.keepFailure(q, r); e != nil && q.flight != nil {
			q.flight.settle(e, e.TTL(), true, false)
		}
	}
	return code, err
}

// ednsSize is the UDP payload size in queries to the upstream, unless the client's is larger. Such an answer fits into a packet of 1280
// bytes, which IPv6 carries everywhere. It is also the agent's default limit for answers to its clients.
const ednsSize = 1232

// upstreamQuery returns the query for the upstream. From the client's query it takes what is part of the entry's key, the ID, RD and a
// larger UDP size. It takes nothing else, because other clients get the answer too. In particular it forwards no EDNS options (RFC 6891,
// section 6.1.1), for example cookies or the client's subnet.
func (q *fetch) upstreamQuery() *dns.Msg {
	r := new(dns.Msg)
	asked := q.request.Question[0]
	r.SetQuestion(strings.ToLower(asked.Name), asked.Qtype)
	r.Question[0].Qclass = asked.Qclass
	r.Id, r.RecursionDesired, r.CheckingDisabled = q.request.Id, q.query.rd, q.query.cd
	// With AD set, the upstream reports whether the answer is authentic. The bit is cleared in replies to clients that set neither AD nor DO
	// (RFC 6840, sections 5.7 and 5.8).
	r.AuthenticatedData = true
	if !q.plain {
		size := uint16(ednsSize)
		if o := q.request.IsEdns0(); o != nil {
			size = max(size, o.UDPSize()) // a truncated answer could not be shared
		}
		r.SetEdns0(size, q.query.do)
	}
	return r
}

// refusesEDNS reports whether a response shows that the upstream does not understand EDNS, or not version 0 (RFC 6891).
func refusesEDNS(res *dns.Msg) bool {
	switch res.Rcode {
	case dns.RcodeFormatError, dns.RcodeNotImplemented:
		return res.IsEdns0() == nil
	}
	return res.Rcode == dns.RcodeBadVers
}

// WriteMsg receives the upstream's answer, stores it if that is allowed, and passes it on to the client.
func (q *fetch) WriteMsg(res *dns.Msg) error {
	if res == nil {
		return errors.New("cache: there is no message to write")
	}
	c := q.cache
	c.health.answer(c.store.Now())
	if !q.plain && refusesEDNS(res) {
		q.plain = true // run sends the query again without EDNS
		return nil
	}
	q.written = true
	t := c.take(q, res)
	q.failure = t.failure
	if t.refreshes && !t.kept && !t.failure && q.query.rd { // without RD, the upstream's answer may be incomplete
		// The answer may show that an address is gone or that an alias has changed (RFC 8767, section 4).
		now := c.store.Now()
		success, denied := c.space.Peek(&q.query.key)
		for _, e := range []*answers.Entry{success, denied} {
			if e != nil && (e.Left(now) <= 0 || failed(e.Rcode())) {
				c.space.Remove(e)
			}
		}
	}
	if q.flight != nil && (t.entry != nil || t.refreshes) {
		q.flight.settle(t.entry, t.ttl, t.kept || t.held, t.refreshes)
	}
	switch {
	case q.background:
		return nil
	case t.entry != nil:
		c.reply(q.ResponseWriter, q.request, &q.query, t.entry, t.ttl)
		return nil
	}
	m := *res // a copy, because the plugin that wrote the message may keep it
	if match(q.request, res) {
		m.Question = q.request.Question // in the client's case
	}
	m.Extra = withoutOPT(res.Extra)
	m.AuthenticatedData = res.AuthenticatedData && q.query.ad
	return q.ResponseWriter.WriteMsg(&m)
}

// Write passes on an answer that a plugin wrote as bytes. It is neither parsed nor stored.
func (q *fetch) Write(b []byte) (int, error) {
	q.written = true
	if q.background {
		return len(b), nil
	}
	return q.ResponseWriter.Write(b)
}
