package load

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

func itoa(n int) string { return strconv.Itoa(n) }

// question is the wire form of an A question.
func question(id uint16, name string) ([]byte, error) {
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	m.Id = id
	wire, err := m.Pack()
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", name, err)
	}
	return wire, nil
}

// whoName owns the record by which testutil's scripted servers say who they are, which of their answers this is, and whom
// they gave it to.
const whoName = "who.invalid."

// judge holds an answer against its question. self is the client's own address. reason is for what is not right.
func judge(wire []byte, name string, self netip.Addr) (o Outcome, reason string) {
	var m dns.Msg
	if err := m.Unpack(wire); err != nil {
		return Wrong, "unreadable answer"
	}
	switch {
	case !m.Response || len(m.Question) != 1 || m.Question[0].Qtype != dns.TypeA || m.Question[0].Qclass != dns.ClassINET,
		!strings.EqualFold(m.Question[0].Name, name):
		return Wrong, "answer to another question"
	case m.Rcode == dns.RcodeServerFailure || m.Rcode == dns.RcodeRefused:
		return Failed, dns.RcodeToString[m.Rcode]
	case m.Rcode != dns.RcodeSuccess:
		return Wrong, dns.RcodeToString[m.Rcode]
	case len(m.Answer) != 1:
		return Wrong, itoa(len(m.Answer)) + " records in answer"
	}
	a, ok := m.Answer[0].(*dns.A)
	if !ok || !strings.EqualFold(a.Hdr.Name, name) {
		return Wrong, "record of another name or type"
	}
	for _, rr := range m.Extra {
		txt, ok := rr.(*dns.TXT)
		if !ok || txt.Hdr.Name != whoName || len(txt.Txt) != 3 {
			continue
		}
		// The server makes the address of the answer's number, so a cache that mixes answers up is seen.
		serial, err := strconv.Atoi(txt.Txt[1])
		ip := a.A.To4()
		if err != nil || ip == nil || ip[0] != 198 || ip[1] != 18 || ip[2] != byte(serial>>8) || ip[3] != byte(serial) {
			return Wrong, "address of another answer"
		}
		if txt.Txt[2] == self.String() {
			return Direct, ""
		}
		return Cache, ""
	}
	return Wrong, "nobody says who answered"
}
