package load

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

func itoa(n int) string { return strconv.Itoa(n) }

// question is the wire form of a query.
func question(id uint16, name string, kind uint16) ([]byte, error) {
	m := new(dns.Msg).SetQuestion(name, kind)
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

// judge holds an answer against its query. self is the client's own address. reason is for what is not right.
func judge(wire []byte, name string, kind uint16, self netip.Addr) (o Outcome, reason string) {
	var m dns.Msg
	if err := m.Unpack(wire); err != nil {
		return Wrong, "unreadable answer"
	}
	switch {
	case !m.Response || len(m.Question) != 1 || m.Question[0].Qtype != kind || m.Question[0].Qclass != dns.ClassINET,
		!strings.EqualFold(m.Question[0].Name, name):
		return Wrong, "answer to another question"
	case m.Rcode == dns.RcodeServerFailure || m.Rcode == dns.RcodeRefused:
		return Failed, dns.RcodeToString[m.Rcode]
	case m.Rcode != dns.RcodeSuccess:
		return Wrong, dns.RcodeToString[m.Rcode]
	case len(m.Answer) != 1:
		return Wrong, itoa(len(m.Answer)) + " records in answer"
	}
	head, address := m.Answer[0].Header(), made(m.Answer[0])
	if head.Rrtype != kind || !strings.EqualFold(head.Name, name) {
		return Wrong, "record of another name or type"
	}
	for _, rr := range m.Extra {
		txt, ok := rr.(*dns.TXT)
		if !ok || txt.Hdr.Name != whoName || len(txt.Txt) != 3 {
			continue
		}
		// The server makes the address of the answer's number, so a cache that mixes answers up is seen.
		serial, err := strconv.Atoi(txt.Txt[1])
		if err != nil || address != int(uint16(serial)) {
			return Wrong, "address of another answer"
		}
		if txt.Txt[2] == self.String() {
			return Direct, ""
		}
		return Cache, ""
	}
	if address < 0 {
		return Wrong, "address of no answer"
	}
	return Wrong, unsigned
}

// unsigned is why an answer is wrong that has all but the record of who answered. A server that passes on no additional records, such as
// unbound, gives only such ones.
const unsigned = "the record of who answered is missing"

// made is the number that a scripted server made an address of: 198.18.x.y, 2001:db8:1818::x:y. Without one it is none's.
func made(rr dns.RR) int {
	var ip net.IP
	prefix := netip.MustParsePrefix("198.18.0.0/16")
	switch rr := rr.(type) {
	case *dns.A:
		ip = rr.A.To4()
	case *dns.AAAA:
		ip, prefix = rr.AAAA, netip.MustParsePrefix("2001:db8:1818::/112")
	}
	if a, ok := netip.AddrFromSlice(ip); !ok || !prefix.Contains(a) {
		return -1
	}
	return int(binary.BigEndian.Uint16(ip[len(ip)-2:]))
}
