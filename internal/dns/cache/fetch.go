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

// followMost is how long a question waits for another one's answer before it asks by itself. Whoever leads ends sooner:
// ask takes 4.5 s, and the agent's Corefile gives what forward asks 4 s (cancel).
const followMost = 5 * time.Second

// inFlight marks the context of a question that others may be waiting for. A plugin that asks its own server again (an
// alias that leads back) must not wait for itself.
type inFlight struct{}

// miss asks the upstream. Questions alike that come meanwhile wait for the answer and take it, if it is one that is kept:
// a moment later it would have been theirs anyway. Whatever is not kept belongs to the one who asked.
func (c *Cache) miss(ctx context.Context, w dns.ResponseWriter, r *dns.Msg, a *asked, good *answers.Entry, s *series) (int, error) {
	q := &fetch{ResponseWriter: w, cache: c, asked: *a, request: r, good: good, series: s}
	if a.rd && ctx.Value(inFlight{}) == nil {
		f, leads := c.flights.join(a.key.Bytes(), c.store.Now())
		if !leads {
			if f.follow(ctx) && f.kept {
				c.reply(w, r, &q.asked, f.entry, f.left(c.store.Now()))
				return dns.RcodeSuccess, nil
			}
		} else {
			q.flight = f
			defer c.flights.end(f)
			// Another flight may have landed since we looked.
			if e, left := c.look(&q.asked.key); left > 0 {
				f.settle(e, e.TTL(), true, true)
				c.reply(w, r, &q.asked, e, uint32(left))
				return dns.RcodeSuccess, nil
			}
		}
	}
	return q.run(ctx)
}

// refresh begins to ask the upstream about an entry that is known, in the background, unless somebody does already. w is
// the client's for whom it is done; nil: for nobody yet. It returns nil when there is too much to do already.
func (c *Cache) refresh(ctx context.Context, w dns.ResponseWriter, r *dns.Msg, a *asked, e *answers.Entry, s *series) (f *flight, leads bool) {
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
	// With RD also for a client that asked without it: only such an answer is kept, and this one is for all.
	r = r.Copy()
	q := &fetch{cache: c, asked: *a, request: r, flight: f, series: s, background: true}
	q.asked.rd = true
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
			// Nobody above us catches it, and one name must not end the server.
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
		} // else it was shed on the way: the next one may try at once
	}()
	return f, true
}

// fetch is one question to the upstream, and the writer that takes the answer.
type fetch struct {
	dns.ResponseWriter // the client's; in the background one that is never written to

	cache      *Cache
	asked      asked
	request    *dns.Msg // the client's; not changed
	good       *answers.Entry
	flight     *flight // nil: nobody else may have the answer
	series     *series
	background bool
	written    bool
	failure    bool // what was written says nothing about the name
	plain      bool // the upstream has refused EDNS
}

// run asks, and keeps the failure if nobody answers (RFC 9520, section 3.2).
func (q *fetch) run(ctx context.Context) (int, error) {
	c := q.cache
	inner := ctx
	if q.flight != nil {
		inner = context.WithValue(ctx, inFlight{}, true)
	}
	r := q.question()
	if c.timed && !q.background {
		c.ahead.missed()
	}
	code, err := plugin.NextOrFailure(c.Name(), c.next, inner, q, r)
	if q.plain && !q.written {
		r = q.question()
		code, err = plugin.NextOrFailure(c.Name(), c.next, inner, q, r)
	}
	switch {
	case q.written:
	case err == nil: // whoever did not write said why by the code, and answers for it
	case code == dns.RcodeServerFailure && ctx.Err() == nil:
		c.health.silence()
		var own interface{ Limit() bool }
		if errors.As(err, &own) && own.Limit() {
			// Our own limit, not the upstream's word: who asks again may well be answered. Who waits here hears of it.
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

// ednsSize is how long an answer over datagrams may be that is for all who ask. It fits into the least packet that IPv6 carries
// everywhere, and is what the agent gives its clients.
const ednsSize = 1232

// question is what the upstream is asked: what the key of the answer knows, and nothing else that this client put beside it. The
// answer is for others too, and options are from one hop to the next (RFC 6891, section 6.1.1): cookies (RFC 7873, section 5),
// the client's subnet (RFC 7871, section 7.2), whatever a resolver may take offence at.
func (q *fetch) question() *dns.Msg {
	r := new(dns.Msg)
	asked := q.request.Question[0]
	r.SetQuestion(strings.ToLower(asked.Name), asked.Qtype)
	r.Question[0].Qclass = asked.Qclass
	r.Id, r.RecursionDesired, r.CheckingDisabled = q.request.Id, q.asked.rd, q.asked.cd
	// So that the upstream says whether it is authentic; who does not understand AD does not get it (RFC 6840, section 5.7).
	r.AuthenticatedData = true
	if !q.plain {
		size := uint16(ednsSize)
		if o := q.request.IsEdns0(); o != nil {
			size = max(size, o.UDPSize()) // an answer that is cut is not for others
		}
		r.SetEdns0(size, q.asked.do)
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

// WriteMsg takes what the upstream said: keeps it, and passes it on.
func (q *fetch) WriteMsg(res *dns.Msg) error {
	if res == nil {
		return errors.New("cache: there is no message to write")
	}
	c := q.cache
	c.health.answer(c.store.Now())
	if !q.plain && refusesEDNS(res) {
		q.plain = true // asked again without, see run
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
		c.reply(q.ResponseWriter, q.request, &q.asked, t.entry, t.ttl)
		return nil
	}
	m := *res // plugins hand out messages that they keep
	if match(q.request, res) {
		m.Question = q.request.Question // in the client's case
	}
	m.Extra = withoutOPT(res.Extra)
	m.AuthenticatedData = res.AuthenticatedData && q.asked.ad
	return q.ResponseWriter.WriteMsg(&m)
}

// Write passes on what a plugin wrote itself. It cannot be kept: nothing is known of it.
func (q *fetch) Write(b []byte) (int, error) {
	q.written = true
	if q.background {
		return len(b), nil
	}
	return q.ResponseWriter.Write(b)
}
