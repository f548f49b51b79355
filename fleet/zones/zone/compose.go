package zone

import (
	"net/netip"

	"github.com/miekg/dns"
)

// Message is one DNS UPDATE (RFC 2136). If all prerequisites hold, the server makes all changes in order; otherwise it makes none. An
// RR's class means what RFC 2136 defines for prerequisites and for updates.
type Message struct{ Prereqs, Changes []dns.RR }

// Empty reports whether the message changes nothing.
func (m *Message) Empty() bool { return len(m.Changes) == 0 }

// answers returns the names at which the addresses of the claim c are to be: the host and, with the strategy LoadBalanced,
// LABEL.klb.HOST for the claim's region and for its cluster.
func (n names) answers(c *Claim) []string {
	at := []string{c.Host}
	if c.Strategy == LoadBalanced {
		if c.Geo != "" {
			at = append(at, n.level(c.Host, c.Geo))
		}
		at = append(at, n.level(c.Host, c.Cluster))
	}
	return at
}

func addressRR(name string, a netip.Addr, ttl uint32) dns.RR {
	h := dns.RR_Header{Name: name, Rrtype: typeOf(a), Class: dns.ClassINET, Ttl: ttl}
	if a.Is4() {
		return &dns.A{Hdr: h, A: a.AsSlice()}
	}
	return &dns.AAAA{Hdr: h, AAAA: a.AsSlice()}
}

func typeOf(a netip.Addr) uint16 {
	if a.Is4() {
		return dns.TypeA
	}
	return dns.TypeAAAA
}

func cnameRR(name, target string, ttl uint32) dns.RR {
	return &dns.CNAME{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: ttl}, Target: target}
}
