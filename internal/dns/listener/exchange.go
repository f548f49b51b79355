package listener

import (
	"net/netip"
	"runtime/debug"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/dns/queryinfo"
)

// Observer records each query once, over UDP and TCP, whether the fast path or the chain answers it. Messages that the DNS library refuses
// because they are no queries are not among them. Both methods run for each query, concurrently, and must be quick.
type Observer interface {
	// Identify returns what is known of a client, to go with its query; nil: nothing. It may be called more than once for a query.
	Identify(client netip.Addr) any
	// Record takes the outcome of a query as soon as the query is done. A query of the agent's own has no Client.
	Record(a queryinfo.Answer)
}

// exchange is the writer of one query for the chain. It notes what is written.
type exchange struct {
	dns.ResponseWriter
	query       queryinfo.Query
	rcode, size int
}

// WriteMsg packs as the library's own writer does.
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

// answer runs a query through the chain, and records it.
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

// answerFast runs a query through the fast path. It returns b with the answer appended, or unchanged if there is none. If ok is false, the
// chain has to answer.
func (p *point) answerFast(first fastpath.Handler, b []byte, q *fastpath.Query) (answer []byte, ok bool) {
	// One query must not end the process. The chain recovers by itself.
	defer func() {
		if r := recover(); r != nil {
			p.log.Error("fast path panicked; the plugin chain answers", "panic", r, "stack", string(debug.Stack()))
			answer, ok = nil, false
		}
	}()
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
