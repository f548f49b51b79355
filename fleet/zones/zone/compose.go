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

// Compose returns all RRs that a cluster publishes for a host if it is the only cluster there: its addresses or the CNAME to its target,
// its claim, and the TXT records that clusters share. The claim's publication must be normalized, valid and not empty.
func Compose(origin string, c Claim) []dns.RR {
	n := names{origin}
	rrs := []dns.RR{
		txt(n.claim(c.Host, c.Cluster), c.text()),
		txt(n.owners(c.Host), ownerText(c.Cluster)),
		txt(n.strategy(c.Host), strategyText(c.Strategy, c.TTL, nil)),
	}
	for _, a := range c.Addresses {
		rrs = append(rrs, txt(n.references(c.Host, a), Reference{c.Cluster, c.Geo}.text()))
		for _, at := range n.answers(&c) {
			rrs = append(rrs, addressRR(at, a, c.TTL))
		}
	}
	if c.Target != "" {
		rrs = append(rrs, cnameRR(n.level(c.Host, c.Cluster), c.Target, c.TTL))
	}
	return rrs
}

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
