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

// maxFollow is how long a query waits for the answer to an equal one before it is forwarded itself. The first one ends sooner: package
// forward takes at most 4.5 s, and the agent's Corefile bounds CoreDNS's forward to 4 s (cancel).
const maxFollow = 5 * time.Second

// inFlight marks the context of a query that others may wait for. A plugin that queries its own server (for an alias that leads back)
// must not wait for itself.
type inFlight struct{}

// miss forwards a query. Equal queries that come meanwhile wait for the answer and share it if it is stored: a moment later they would
// get it from the cache anyway. An answer that is not stored belongs to one client.
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
			// Another flight may have landed since we looked.
			if e, left := c.look(&q.query.key); left > 0 {
				f.settle(e, e.TTL(), true, true)
				c.reply(w, r, &q.query, e, uint32(left))
				return dns.RcodeSuccess, nil
			}
		}
	}
	return q.run(ctx)
}

// refresh starts an upstream query for an entry in the background, unless one is in progress. w is the writer of the client that needs
// it; nil: no client does yet. It returns nil if too many refreshes are in flight.
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
	// With RD also for a client that set none: only such an answer is stored, and this one is for all clients.
	r = r.Copy()
	q := &fetch{cache: c, query: *a, request: r, flight: f, series: s, background: true}
	q.query.rd = true
	if e.Class() == answers.Success {
		q.good = e
	}
	// A refresh for no client comes over TCP from nowhere, so that its answer is not truncated.
	client := &responsewriter.Capture{Base: responsewriter.Base{Local: &net.TCPAddr{}, Remote: &net.TCPAddr{}}}
	if w != nil { // it may be gone before the answer comes
		client.Base = responsewriter.Base{Local: w.LocalAddr(), Remote: w.RemoteAddr()}
	}
	q.ResponseWriter = client
	ctx = context.WithoutCancel(ctx)
	go func() { // ends with the upstream's own deadlines
		defer func() { <-c.background }()
		defer c.flights.end(f)
		defer func() {
			// No caller recovers, and one name must not end the server.
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
		} // else it was shed on the way: the next query may retry at once
	}()
	return f, true
}

// fetch is one query to the upstream, and the writer that takes the answer.
type fetch struct {
	dns.ResponseWriter // the client's; in the background one that is never written to

	cache      *Cache
	query      query
	request    *dns.Msg // the client's; not changed
	good       *answers.Entry
	flight     *flight // nil: no other client may share the answer
	series     *series
	background bool
	written    bool
	failure    bool // the answer is not about the name
	plain      bool // the upstream has refused EDNS
}

// run forwards the query, and stores the failure if no server answers (RFC 9520, section 3.2).
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
	case err == nil: // the plugin that did not write has set the code, and CoreDNS answers with it
	case code == dns.RcodeServerFailure && ctx.Err() == nil:
		c.health.silence()
		var own interface{ Limit() bool }
		if errors.As(err, &own) && own.Limit() {
			// Our own limit, not the upstream's failure: the next query may well be answered. Waiting clients get the failure.
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

// ednsSize bounds an answer over datagrams that is for all clients. It fits into the smallest packet that IPv6 carries everywhere, and is
// the agent's limit for answers to its clients.
const ednsSize = 1232

// upstreamQuery is the query for the upstream. It has the contents of the answer's key, and nothing else of this client's query: the answer
// is for others too, and options are hop by hop (RFC 6891, section 6.1.1), for example cookies (RFC 7873, section 5) and the client's
// subnet (RFC 7871, section 7.2).
func (q *fetch) upstreamQuery() *dns.Msg {
	r := new(dns.Msg)
	asked := q.request.Question[0]
	r.SetQuestion(strings.ToLower(asked.Name), asked.Qtype)
	r.Question[0].Qclass = asked.Qclass
	r.Id, r.RecursionDesired, r.CheckingDisabled = q.request.Id, q.query.rd, q.query.cd
	// So that the upstream reports whether the answer is authentic. A client that does not understand AD does not get it (RFC 6840,
	// section 5.7).
	r.AuthenticatedData = true
	if !q.plain {
		size := uint16(ednsSize)
		if o := q.request.IsEdns0(); o != nil {
			size = max(size, o.UDPSize()) // a truncated answer is not for others
		}
		r.SetEdns0(size, q.query.do)
	}
	return r
}

// refusesEDNS reports whether the upstream does not understand EDNS (RFC 6891, section 7).
func refusesEDNS(res *dns.Msg) bool {
	switch res.Rcode {
	case dns.RcodeFormatError, dns.RcodeNotImplemented:
		return res.IsEdns0() == nil
	}
	return res.Rcode == dns.RcodeBadVers
}

// WriteMsg stores the upstream's answer and passes it on.
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
	m := *res // plugins hand out messages that they keep
	if match(q.request, res) {
		m.Question = q.request.Question // in the client's case
	}
	m.Extra = withoutOPT(res.Extra)
	m.AuthenticatedData = res.AuthenticatedData && q.query.ad
	return q.ResponseWriter.WriteMsg(&m)
}

// Write passes on bytes that a plugin wrote. They are not stored, because their meaning is unknown.
func (q *fetch) Write(b []byte) (int, error) {
	q.written = true
	if q.background {
		return len(b), nil
	}
	return q.ResponseWriter.Write(b)
}
