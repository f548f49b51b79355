package authoritative

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/file"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/dns/queryinfo"
)

// plainHost is a host whose A and AAAA answers the fast path makes from prepared bytes, without CoreDNS's plugin chain. No cluster
// publishes a hostname for it, so no answer is a CNAME.
type plainHost struct {
	*host
	// by family, A and AAAA: bytes of the address records in the longest answer; 0: the host has no such address
	most   [2]int
	denied []byte   // authority section of the answer to a type that the host does not have; nil: CoreDNS must answer
	types  []uint16 // record types that exist at the name, so that queries for them are not denied
}

// metaTypes to metaTypesEnd are the query types that do not name one type of record (RFC 6895, section 3.1), for example ANY and AXFR.
const metaTypes, metaTypesEnd = 128, 255

// plainHosts returns, by name in wire format, the hosts whose answers can be prepared. It leaves out a host for which a cluster
// publishes a hostname, because the answer may then be a CNAME, and a host at the DNS root, whose name is shorter than the compression
// pointer to it.
func (z *Zone) plainHosts() (map[string]*plainHost, error) {
	out := make(map[string]*plainHost, len(z.hosts))
	for name, h := range z.hosts {
		if slices.ContainsFunc(h.answers, func(a answer) bool { return a.alias != nil }) || name == "." {
			continue
		}
		p := &plainHost{host: h}
		for _, a := range h.answers {
			for family, list := range a.addresses {
				size := 0
				for i := range list[:min(len(list), answerMost)] {
					size += len(list[i].wire)
				}
				p.most[family] = max(p.most[family], size)
			}
		}
		if err := p.deny(z, name); err != nil {
			return nil, err
		}
		key, err := msg.Name(name)
		if err != nil {
			return nil, err
		}
		out[string(key)] = p
	}
	return out, nil
}

// deny prepares the answer without records (NODATA) that a plain server gives for types that the host does not have. It leaves denied nil
// if such answers can differ, for example in a signed zone, and if the zone has no record at the name.
func (p *plainHost) deny(z *Zone, name string) error {
	elem, ok := z.plain.Search(name)
	if !ok {
		return nil // the name itself has no records
	}
	p.types = elem.Types()
	if name == z.origin {
		p.types = append(p.types, dns.TypeSOA, dns.TypeNS, dns.TypeDS) // DS: the zone above may have it
	}
	absent := dns.TypeNULL // an experimental type; if the host has it after all, CoreDNS answers such queries
	if slices.Contains(p.types, absent) {
		return nil
	}
	var sections [2][]byte
	for i, do := range []bool{false, true} {
		m := new(dns.Msg).SetQuestion(name, absent)
		if do {
			m.SetEdns0(dns.MinMsgSize, true)
		}
		f := z.find(requestOf(z, m), name)
		if f.result != file.NoData || len(f.answer) > 0 || len(f.extra) > 0 {
			return nil
		}
		m.Extra, m.Ns, m.Compress = nil, f.ns, true
		b, err := m.Pack()
		if err != nil {
			return err
		}
		question, ok := msg.Question(b)
		if !ok {
			return fmt.Errorf("%s: %w", name, msg.ErrName)
		}
		if sections[i] = b[msg.HeaderSize+len(question):]; len(f.ns) != 1 {
			return nil // a signed zone has more records here: CoreDNS must answer
		}
	}
	if string(sections[0]) == string(sections[1]) {
		p.denied = sections[0]
	}
	return nil
}

// FastPath returns the handler that answers queries for hosts without CoreDNS's plugin chain. It serves all zones, so it ignores its
// arguments.
func (s *Server) FastPath(*dnsserver.Server, string) fastpath.Handler { return hits{s} }

// hits gives the same answers as ServeDNS, with the same metrics, but from prepared bytes. It decides whether CoreDNS must answer before it
// applies the rate limit and draws the random number. Otherwise a query that CoreDNS answers would count twice against the limit, and a
// second draw, made only for long answers, would favor clusters with few addresses.
type hits struct{ *Server }

// addressesMost is the number of addresses for which Answer needs no allocation. An answer over UDP, of at most 1,232 bytes, cannot hold
// more; one over TCP can.
const addressesMost = 80

// Answer implements fastpath.Handler.
func (h hits) Answer(b []byte, q *fastpath.Query) ([]byte, queryinfo.Level, bool) {
	s, o := h.Server, h.options.Load()
	z, _ := s.zones.Load().plain.Find(&q.Query)
	if z == nil {
		return b, queryinfo.Miss, false
	}
	p := z.byWire[string(q.Name())]
	if p == nil {
		return b, queryinfo.Miss, false
	}
	subnet, ok := subnetIn(q.OPT.Options)
	if !ok {
		return b, queryinfo.Miss, false
	}
	asked := q.Client
	if subnet.bytes != nil {
		if !listed(o.Resolvers, q.Client) {
			subnet.bytes = nil
		} else if subnet.network.Bits() > 0 {
			asked = subnet.network.Addr()
		}
	}
	family, isAddress := family(q.Type)
	most := 0
	if isAddress {
		most = p.most[family]
	}
	denied := most == 0
	if denied {
		if p.denied == nil || q.Type >= metaTypes && q.Type <= metaTypesEnd || slices.Contains(p.types, q.Type) {
			return b, queryinfo.Miss, false
		}
		most = len(p.denied)
	}
	opt := answerOPT(q, subnet)
	if msg.HeaderSize+len(q.Question)+most+opt.Len() > q.OPT.MaxAnswer(q.TCP) {
		return b, queryinfo.Miss, false // the answer may have to be truncated
	}
	if !q.TCP {
		switch o.limit.over(q.Client) {
		case none:
			s.counts.limited.Inc()
			return b, queryinfo.Miss, true
		case short:
			s.counts.slipped.Inc()
			start := len(b)
			b = appendHead(b, q, msg.BitTC, 0, 0)
			opt = answerOPT(q, subnetOption{})
			return opt.Append(b, start), queryinfo.Miss, true
		}
	}
	start := len(b)
	if denied {
		s.counts.plain.Inc()
		b = append(appendHead(b, q, msg.BitAA, 0, 1), p.denied...)
		return appendOPT(b, start, opt, subnet, 0), queryinfo.Miss, true
	}
	var some [addressesMost]*address
	i, bits, draw := s.pick(p.host, family, asked) // i is never -1, because a cluster has an address of the family (most is not 0)
	list := p.addresses(some[:0], i, family, draw)
	b = appendHead(b, q, msg.BitAA, len(list), 0)
	for _, a := range list {
		b = append(b, a.wire...)
	}
	return appendOPT(b, start, opt, subnet, bits), queryinfo.Miss, true
}

// appendHead appends the header and the question section of an answer. The header does not count the OPT record, because OPT.Append
// counts it.
func appendHead(b []byte, q *fastpath.Query, bit, answers, authorities int) []byte {
	bits := uint16(msg.BitQR|bit) << 8
	if q.RD {
		bits |= msg.BitRD << 8
	}
	if q.CD {
		bits |= msg.BitCD
	}
	h := msg.Header{Id: q.ID, Bits: bits, Qdcount: 1, Ancount: uint16(answers), Nscount: uint16(authorities)}
	return append(h.Append(b), q.Question...)
}

// answerOPT returns the OPT record as CoreDNS would send it: the query's OPT without its options, except the client subnet.
func answerOPT(q *fastpath.Query, o subnetOption) msg.OPT {
	opt := q.OPT
	if opt.Options = o.bytes; o.bytes != nil {
		opt.KeepDO()
	}
	return opt
}

// appendOPT appends the OPT record, if there is one. start is where the answer begins in b. scope is the number of bits of the client's
// address on which the answer depends.
func appendOPT(b []byte, start int, opt msg.OPT, o subnetOption, scope int) []byte {
	b = opt.Append(b, start)
	if opt.Present && o.bytes != nil && o.network.Bits() > 0 {
		b[len(b)-len(o.bytes)+scopeAt] = byte(scope)
	}
	return b
}

// subnetOption is an EDNS client subnet option in the form that the fast path accepts (RFC 7871, section 6): scope 0, an IPv4 or IPv6
// network, and no more bytes than the network needs.
type subnetOption struct {
	bytes   []byte // including code and length; nil: none
	network netip.Prefix
}

// scopeAt is the offset of the scope in the option, behind code, length, family and source prefix length.
const scopeAt = 7

// subnetIn parses the options of an OPT record. ok is false if CoreDNS must handle one of them. Cookies, which BIND sends with each
// query, are ignored, as by a server that does not implement them (RFC 6891, section 6.1.2).
func subnetIn(options []byte) (o subnetOption, ok bool) {
	for len(options) > 0 {
		code, content, rest, ok := msg.CutOption(options)
		switch {
		case ok && code == dns.EDNS0COOKIE:
		case ok && code == dns.EDNS0SUBNET && o.bytes == nil:
			if o.network, ok = networkIn(content); !ok {
				return o, false
			}
			o.bytes = options[:len(options)-len(rest)]
		default:
			return o, false
		}
		options = rest
	}
	return o, true
}

// networkIn reads the network from the content of a client subnet option; ok is false if CoreDNS must handle the option.
func networkIn(b []byte) (p netip.Prefix, ok bool) {
	if len(b) < 4 || b[3] != 0 || len(b) != 4+(int(b[2])+7)/8 {
		return p, false
	}
	var a netip.Addr
	switch bits := int(b[2]); {
	case binary.BigEndian.Uint16(b) == 1 && bits <= 32:
		var four [4]byte
		copy(four[:], b[4:])
		a = netip.AddrFrom4(four)
	case binary.BigEndian.Uint16(b) == 2 && bits <= 128:
		var sixteen [16]byte
		copy(sixteen[:], b[4:])
		if a = netip.AddrFrom16(sixteen); a.Is4In6() {
			return p, false
		}
	default:
		return p, false
	}
	p = netip.PrefixFrom(a, int(b[2]))
	return p, p == p.Masked()
}
