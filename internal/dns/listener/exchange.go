package listener

import (
	"net/netip"
	"runtime/debug"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/dns/queryinfo"
)

// Observer is told of each question that is answered, once, over UDP and TCP alike and whoever answers it. What the DNS library
// refuses by itself, since it is no question, is not among them. Both methods are called for each question: they must be quick, and
// are called at the same time.
type Observer interface {
	// Who returns what is known of a client, to go with its question; nil: nothing. It may be called more than once for a question.
	Who(client netip.Addr) any
	// Answered is told what became of a question, as soon as it is dealt with. A question of the agent's own has no Client.
	Answered(a queryinfo.Answer)
}

// exchange is one question while the chain answers it: the chain's writer, which notes what is written.
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
	x.rcode = m.Rcode // also what the header has no place for
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

// answer has the chain answer a question, and tells the observer.
func (s *serving) answer(o Observer, at netip.AddrPort, client netip.Addr, w dns.ResponseWriter, r *dns.Msg) {
	x := &exchange{ResponseWriter: w}
	x.query.Client = client
	if o != nil {
		x.query.Who = o.Who(client)
	}
	s.chain.ServeDNS(at, x, r, &x.query)
	if o != nil {
		o.Answered(queryinfo.Answer{Client: client, Who: x.query.Who, Rcode: x.rcode, Size: x.size, Level: x.query.Level()})
	}
}

// before asks whoever stands before the chain. It returns b with the answer appended, or as it is where there is none; ok is false where
// the chain is to answer.
func (p *point) before(first fastpath.Handler, b []byte, q *fastpath.Query) (answer []byte, ok bool) {
	// One question must not end the process, and the chain has a recovery of its own.
	defer func() {
		if r := recover(); r != nil {
			p.log.Error("a hit was left to the chain", "panic", r, "stack", string(debug.Stack()))
			answer, ok = nil, false
		}
	}()
	q.Who = nil
	if p.observer != nil {
		q.Who = p.observer.Who(q.Client)
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
		p.observer.Answered(queryinfo.Answer{Client: q.Client, Who: q.Who, Rcode: code, Size: size, Level: level})
	}
	return b, true
}
