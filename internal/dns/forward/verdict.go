package forward

import (
	"errors"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/msg"
)

// verdict classifies an answer.
type verdict uint8

const (
	good      verdict = iota // ends the client's query; a denial is good too
	truncated                // the whole answer must be fetched over TCP
	servfail
	refused
	lame // the server does not hold the zone: it sends a referral or a denial from another zone
)

// judge classifies an answer. holds are the zones, in lower case and fully qualified, that the servers should hold.
//
// A server that does not hold a zone is recognised by a denial with an SOA (RFC 2308, section 2), or by a referral with NS records, whose
// owner is not in that zone, usually a parent. A denial with neither is good, because small servers leave the SOA out.
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

// Errors of read. A UDP message with errForeign is ignored, and the wait goes on.
var (
	errForeign   = errors.New("answer to another query")
	errMalformed = errors.New("malformed answer")
)

// read parses wire as the answer to req, which was sent with id. It returns an error if it is not that answer.
func read(wire []byte, req *dns.Msg, id uint16) (*dns.Msg, error) {
	if len(wire) < msg.HeaderSize || msg.ReadHeader(wire).Id != id || !msg.IsResponse(wire) {
		return nil, errForeign
	}
	m := new(dns.Msg)
	if err := m.Unpack(wire); err != nil || !whole(wire, m) {
		if !m.Truncated || !sameQuestion(m, req) {
			return nil, errMalformed
		}
		// Some servers cut a long answer at any byte and set TC. The whole answer is then fetched over TCP.
		m.Answer, m.Ns, m.Extra = nil, nil, nil
	}
	if m.Opcode != req.Opcode {
		return nil, errForeign
	}
	if len(m.Question) == 0 && m.Rcode != dns.RcodeSuccess {
		m.Question = append(m.Question, req.Question...) // some servers leave it out of an error
	}
	if !sameQuestion(m, req) {
		return nil, errForeign
	}
	m.Id = req.Id
	return m, nil
}

// whole reports whether m has as many records as its header announces. miekg/dns accepts a message that ends after the question section.
func whole(wire []byte, m *dns.Msg) bool {
	h := msg.ReadHeader(wire)
	return int(h.Ancount) == len(m.Answer) && int(h.Nscount) == len(m.Ns) && int(h.Arcount) == len(m.Extra)
}

func sameQuestion(m, req *dns.Msg) bool {
	return slices.EqualFunc(m.Question, req.Question, func(a, q dns.Question) bool {
		return a.Qtype == q.Qtype && a.Qclass == q.Qclass && strings.EqualFold(a.Name, q.Name)
	})
}
