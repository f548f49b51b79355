package listener

import (
	"log/slog"
	"net/netip"
	"runtime/debug"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/dns/queryinfo"
)

// Observer records each UDP and TCP query once, no matter whether the fast path or the plugin chain answers it. It does not see dropped
// queries, or messages that are refused because they are not valid queries. Its methods run for each query, also concurrently, and must be
// quick.
type Observer interface {
	// Identify returns what is known about a client; nil: nothing. The result goes with the query. It may be called several times for a
	// query.
	Identify(client netip.Addr) any
	// Record gets the outcome of a query when the fast path or the plugin chain has finished it. For the agent's own queries, Client is the
	// zero value.
	Record(a queryinfo.Answer)
}

// exchange is the ResponseWriter of one query for the plugin chain. It records the response code and the size of what is written.
type exchange struct {
	dns.ResponseWriter
	query       queryinfo.Query
	rcode, size int
}

// WriteMsg packs and writes the message, as the DNS library's own writer does.
func (x *exchange) WriteMsg(m *dns.Msg) error {
	b, err := m.Pack()
	if err != nil {
		return err
	}
	x.rcode = m.Rcode // with the OPT's extension
	x.size += len(b)
	_, err = x.ResponseWriter.Write(b)
	return err
}

func (x *exchange) Write(b []byte) (int, error) {
	if len(b) >= msg.HeaderSize {
		x.rcode = msg.Rcode(b)
	}
	x.size += len(b)
	return x.ResponseWriter.Write(b)
}

// answer runs a query through the plugin chain, and passes its outcome to the observer.
func (s *serving) answer(o Observer, at netip.AddrPort, client netip.Addr, w dns.ResponseWriter, r *dns.Msg) {
	x := &exchange{ResponseWriter: w}
	x.query.Client = client
	if o != nil {
		x.query.Identity = o.Identify(client)
	}
	s.chain.ServeDNS(at, x, r, &x.query)
	if o != nil {
		o.Record(queryinfo.Answer{Client: client, Identity: x.query.Identity, Rcode: x.rcode, Size: x.size, Level: x.query.Level()})
	}
}

// answerFast runs a query through the fast path. It returns b with the answer appended, or b unchanged if the query gets no answer. If ok
// is false, the plugin chain has to answer.
func (p *point) answerFast(first fastpath.Handler, b []byte, q *fastpath.Query) (answer []byte, ok bool) {
	defer leaveToChain(p.log, &ok)
	q.Identity = nil
	if p.observer != nil {
		q.Identity = p.observer.Identify(q.Client)
	}
	head := len(b)
	b, level, ok := first.Answer(b, q)
	size, code := len(b)-head, 0
	silent := size == 0 && !q.TCP
	if !ok || !silent && (size < msg.HeaderSize || size > dns.MaxMsgSize) {
		return nil, false
	}
	if !silent {
		code = msg.Rcode(b[head:])
	}
	if p.observer != nil {
		p.observer.Record(queryinfo.Answer{Client: q.Client, Identity: q.Identity, Rcode: code, Size: size, Level: level})
	}
	return b, true
}

// leaveToChain, deferred, recovers from a panic in the fast path, which must not end the process. CoreDNS itself recovers from panics of
// plugins, unless the Corefile has the directive debug.
func leaveToChain(log *slog.Logger, ok *bool) {
	if r := recover(); r != nil {
		log.Error("panic in the fast path; the plugin chain answers this query instead", "panic", r, "stack", string(debug.Stack()))
		*ok = false
	}
}
