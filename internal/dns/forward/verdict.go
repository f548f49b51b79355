package forward

import (
	"errors"
	"strings"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/msg"
)

// verdict says what an answer is worth.
type verdict uint8

const (
	good      verdict = iota // an answer for the client, a denial included
	truncated                // the head of one; the whole is to be had over a stream
	servfail                 // the server says that it cannot
	refused                  // the server says that it will not
	lame                     // the server does not hold the zone: it denies out of one above it, or refers us elsewhere
)

// bad reports whether another server may know better.
func (v verdict) bad() bool { return v >= servfail }

func (v verdict) String() string {
	return [...]string{"answered", "truncated", "SERVFAIL", "REFUSED", "answers for another zone"}[v]
}

// judge looks at an answer. holds are the zones, lower case and fully qualified, that the servers are expected to hold.
//
// A server that does not hold a zone is known by its denials: the SOA beside them is that of a zone above (RFC 2308,
// section 2.1), or there is none and a referral instead. Denials without either are taken as they are: small servers
// leave the SOA out.
func judge(m *dns.Msg, holds []string) verdict {
	switch {
	case m.Rcode == dns.RcodeServerFailure:
		return servfail
	case m.Rcode == dns.RcodeRefused:
		return refused
	case m.Truncated:
		return truncated
	case len(m.Answer) > 0, len(m.Ns) == 0, len(holds) == 0, len(m.Question) == 0:
		return good
	case m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError:
		return good
	}
	zone := ""
	for _, z := range holds {
		if dns.IsSubDomain(z, m.Question[0].Name) {
			zone = z
		}
	}
	if zone == "" {
		return good
	}
	for _, rr := range m.Ns {
		switch rr.Header().Rrtype {
		case dns.TypeSOA, dns.TypeNS:
			if !dns.IsSubDomain(zone, rr.Header().Name) {
				return lame
			}
		}
	}
	return good
}

// Faults of an answer. errForeign is somebody else's: over datagrams it is passed over and the wait goes on.
var (
	errForeign   = errors.New("an answer to another question")
	errMalformed = errors.New("an answer that cannot be read")
)

// read takes a message for the answer to req, which was sent under id, or says why it is none.
func read(wire []byte, req *dns.Msg, id uint16) (*dns.Msg, error) {
	if len(wire) < msg.HeaderSize || msg.ReadHeader(wire).Id != id || !msg.IsResponse(wire) {
		return nil, errForeign
	}
	m := new(dns.Msg)
	if err := m.Unpack(wire); err != nil || !whole(wire, m) {
		if !m.Truncated || !sameQuestion(m, req) {
			return nil, errMalformed
		}
		// Some cut an answer anywhere, with the bit set: the whole is asked for over a stream.
		m.Answer, m.Ns, m.Extra = nil, nil, nil
	}
	if m.Opcode != req.Opcode {
		return nil, errForeign
	}
	if len(m.Question) == 0 && m.Rcode != dns.RcodeSuccess {
		m.Question = append(m.Question, req.Question...) // an error needs none (RFC 1035, section 4.1.1)
	}
	if !sameQuestion(m, req) {
		return nil, errForeign
	}
	m.Id = req.Id
	return m, nil
}

// whole reports whether m holds as many records as its header announces: the library takes a message that ends behind the
// question for one without any.
func whole(wire []byte, m *dns.Msg) bool {
	h := msg.ReadHeader(wire)
	return int(h.Ancount) == len(m.Answer) && int(h.Nscount) == len(m.Ns) && int(h.Arcount) == len(m.Extra)
}

func sameQuestion(m, req *dns.Msg) bool {
	if len(m.Question) != len(req.Question) {
		return false
	}
	for i, q := range req.Question {
		a := m.Question[i]
		if a.Qtype != q.Qtype || a.Qclass != q.Qclass || !strings.EqualFold(a.Name, q.Name) {
			return false
		}
	}
	return true
}
