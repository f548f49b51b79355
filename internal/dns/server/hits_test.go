package server_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	mdns "github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/queryinfo"
)

// same sends a query in both ways and compares: if the fast path answers, the chain gives the same answer, except for the order of
// addresses and a second of TTL. It reports whether the fast path answered.
func (p *pair) same(t testing.TB, what string, m []byte, tcp bool) bool {
	t.Helper()
	fast, ok := p.fast(m, tcp)
	if !ok {
		return false
	}
	slow := p.slow(m, tcp)
	if slow == nil || p.level != queryinfo.Hit {
		t.Errorf("%s: answered, where the chain is silent, or has a miss\nquestion %x\nanswer %x", what, m, fast)
		return true
	}
	a, fastTTL := settled(t, fast)
	b, slowTTL := settled(t, slow)
	if !bytes.Equal(a, b) { // cmp.Diff takes long even of what is equal
		t.Errorf("%s: another answer than the chain's (-chain +before)\nquestion %x\n%s", what, m, cmp.Diff(b, a))
	}
	for i, ttl := range fastTTL {
		// The chain got the query a moment later.
		if i >= len(slowTTL) || ttl < slowTTL[i] || ttl > slowTTL[i]+1 || ttl > worldTTL {
			t.Errorf("%s: TTLs %v, the chain's %v", what, fastTTL, slowTTL)
			break
		}
	}
	return true
}

// variant is a form that a query may have.
type variant struct {
	name  string
	plain bool // the fast path must answer it if the cache has the answer
	put   func(m *mdns.Msg)
	bytes func(b []byte) []byte
}

func opt(size uint16, do bool) func(*mdns.Msg) {
	return func(m *mdns.Msg) { m.SetEdns0(size, do) }
}

func option(options ...mdns.EDNS0) func(*mdns.Msg) {
	return func(m *mdns.Msg) {
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = options
	}
}

var variants = []variant{
	{name: "as it is", plain: true},
	{name: "no RD", plain: true, put: func(m *mdns.Msg) { m.RecursionDesired = false }},
	{name: "AD", plain: true, put: func(m *mdns.Msg) { m.AuthenticatedData = true }},
	{name: "CD", plain: true, put: func(m *mdns.Msg) { m.CheckingDisabled = true }},
	{name: "AD and CD", plain: true, put: func(m *mdns.Msg) { m.AuthenticatedData, m.CheckingDisabled = true, true }},
	{name: "Z", put: func(m *mdns.Msg) { m.Zero = true }},
	{name: "AA", put: func(m *mdns.Msg) { m.Authoritative = true }},
	{name: "TC", put: func(m *mdns.Msg) { m.Truncated = true }},
	{name: "RA", put: func(m *mdns.Msg) { m.RecursionAvailable = true }},
	{name: "a response code", put: func(m *mdns.Msg) { m.Rcode = 5 }},
	{name: "an answer", put: func(m *mdns.Msg) { m.Response = true }},
	{name: "OPT 0", plain: true, put: opt(0, false)},
	{name: "OPT 100", plain: true, put: opt(100, false)},
	{name: "OPT 512", plain: true, put: opt(512, false)},
	{name: "OPT 513", plain: true, put: opt(513, false)},
	{name: "OPT 1232", plain: true, put: opt(1232, false)},
	{name: "OPT 4096", plain: true, put: opt(4096, false)},
	{name: "OPT 65535", plain: true, put: opt(65535, false)},
	{name: "DO", plain: true, put: opt(1232, true)},
	{name: "DO, 4096 and CD", plain: true, put: func(m *mdns.Msg) { m.SetEdns0(4096, true); m.CheckingDisabled = true }},
	{name: "other flags of OPT", plain: true, put: func(m *mdns.Msg) { m.SetEdns0(1232, false); m.IsEdns0().Hdr.Ttl |= 0x4155 }},
	{name: "OPT version 1", put: func(m *mdns.Msg) { m.SetEdns0(1232, false); m.IsEdns0().SetVersion(1) }},
	{name: "OPT with an extended code", put: opt(1232, false), bytes: func(b []byte) []byte { b[len(b)-6] = 1; return b }},
	{name: "two OPT", put: func(m *mdns.Msg) { m.SetEdns0(1232, false); m.Extra = append(m.Extra, m.Extra[0]) }},
	{name: "cookie", put: option(&mdns.EDNS0_COOKIE{Code: mdns.EDNS0COOKIE, Cookie: "24a5ac1bc2d3e4f5"})},
	{name: "NSID", put: option(&mdns.EDNS0_NSID{Code: mdns.EDNS0NSID})},
	{name: "subnet", put: option(&mdns.EDNS0_SUBNET{Code: mdns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: []byte{192, 0, 2, 0}})},
	{name: "padding and an unknown one", put: option(&mdns.EDNS0_PADDING{Padding: make([]byte, 40)}, &mdns.EDNS0_LOCAL{Code: 65001, Data: []byte("x")})},
	{name: "another record behind", put: func(m *mdns.Msg) {
		m.Extra = []mdns.RR{&mdns.A{Hdr: mdns.RR_Header{Name: ".", Rrtype: 1, Class: 1}, A: []byte{1, 2, 3, 4}}}
	}},
	{name: "TSIG", put: func(m *mdns.Msg) {
		m.Extra = []mdns.RR{&mdns.TSIG{Hdr: mdns.RR_Header{Name: "key.", Rrtype: mdns.TypeTSIG, Class: mdns.ClassANY}, Algorithm: mdns.HmacSHA256}}
	}},
	{name: "an authority record", put: func(m *mdns.Msg) {
		m.Ns = []mdns.RR{&mdns.NS{Hdr: mdns.RR_Header{Name: ".", Rrtype: 2, Class: 1}, Ns: "."}}
	}},
	{name: "two questions", put: func(m *mdns.Msg) { m.Question = append(m.Question, m.Question[0]) }},
	{name: "no question", put: func(m *mdns.Msg) { m.Question = nil }},
	{name: "NOTIFY", put: func(m *mdns.Msg) { m.Opcode = mdns.OpcodeNotify }},
	{name: "UPDATE", put: func(m *mdns.Msg) { m.Opcode = mdns.OpcodeUpdate }},
	{name: "opcode 15", put: func(m *mdns.Msg) { m.Opcode = 15 }},
	{name: "CHAOS", put: func(m *mdns.Msg) { m.Question[0].Qclass = mdns.ClassCHAOS }},
	{name: "class ANY", put: func(m *mdns.Msg) { m.Question[0].Qclass = mdns.ClassANY }},
	{name: "class 0", put: func(m *mdns.Msg) { m.Question[0].Qclass = 0 }},
	{name: "mixed case", plain: true, bytes: func(b []byte) []byte {
		for i := 12; i < len(b)-4; i += 2 {
			if 'a' <= b[i] && b[i] <= 'z' {
				b[i] -= 'a' - 'A'
			}
		}
		return b
	}},
	{name: "ID 0", plain: true, bytes: func(b []byte) []byte { b[0], b[1] = 0, 0; return b }},
	{name: "ID 65535", plain: true, bytes: func(b []byte) []byte { b[0], b[1] = 255, 255; return b }},
	{name: "a byte more", bytes: func(b []byte) []byte { return append(b, 0) }},
	{name: "a byte less", bytes: func(b []byte) []byte { return b[:len(b)-1] }},
	{name: "half of it", bytes: func(b []byte) []byte { return b[:len(b)/2] }},
	{name: "a header alone", bytes: func(b []byte) []byte { return b[:12] }},
	{name: "a pointer to itself", bytes: func(b []byte) []byte { return append(b[:12:12], 0xc0, 12, 0, 1, 0, 1) }},
	{name: "a pointer to the header", bytes: func(b []byte) []byte { return append(b[:12:12], 1, 'a', 0xc0, 4, 0, 1, 0, 1) }},
	{name: "a label of a reserved kind", bytes: func(b []byte) []byte { b[12] |= 0x80; return b }},
	{name: "a label that is too long for the message", bytes: func(b []byte) []byte { b[12] = 63; return b }},
	{name: "a name of 256 bytes", bytes: func(b []byte) []byte {
		name := strings.Repeat("\x3f"+strings.Repeat("a", 63), 3) + "\x3e" + strings.Repeat("a", 62) + "\x00"
		return append(append(b[:12:12], name...), 0, 1, 0, 1)
	}},
	{name: "an additional count without a record", bytes: func(b []byte) []byte { b[11] = 1; return b }},
	{name: "a dot in a label", bytes: func(b []byte) []byte { b[13] = '.'; return b }},
	{name: "a zero in a label", bytes: func(b []byte) []byte { b[13] = 0; return b }},
	{name: "an octet above ASCII", bytes: func(b []byte) []byte { b[13] = 0xe4; return b }},
}

// corpus makes each query in each variant.
func corpus(t testing.TB, each func(what string, m []byte, v variant, name string)) {
	t.Helper()
	names := map[string][]uint16{"size-4096.svc.cluster.local.": {mdns.TypeTXT}, "size-65535.cluster.local.": {mdns.TypeTXT},
		"size-65536.cluster.local.": {mdns.TypeTXT}, "1.0.0.10.in-addr.arpa.": {mdns.TypePTR}, ".": {mdns.TypeNS, mdns.TypeA}}
	for _, n := range []string{"insecure.example.org.", "a.", "_dns._udp.kube-dns.kube-system.svc.cluster.local."} {
		names[n] = []uint16{mdns.TypeA, mdns.TypeAAAA, mdns.TypeTXT, mdns.TypeSRV}
	}
	for _, n := range []string{"web.shop.svc.cluster.local.", "www.example.org."} {
		for qtype := range uint16(66) {
			names[n] = append(names[n], qtype)
		}
		names[n] = append(names[n], mdns.TypeIXFR, mdns.TypeAXFR, mdns.TypeANY, mdns.TypeCAA, 65535)
	}
	for _, n := range []string{"gone", "empty", "sick", "refused", "short", "alias", "leads", "many-2", "many-3", "many-27", "many-28", "many-29", "many-73", "many-250"} {
		names[n+".svc.cluster.local."], names[n+".example.org."] = []uint16{mdns.TypeA, mdns.TypeAAAA}, []uint16{mdns.TypeA}
	}
	for _, size := range []int{490, 499, 500, 501, 502, 510, 511, 512, 513, 514} { // around what fits with and without OPT
		names[fmt.Sprintf("size-%d.cluster.local.", size)], names[fmt.Sprintf("size-%d.cluster.local.", size+720)] = []uint16{mdns.TypeTXT}, []uint16{mdns.TypeTXT}
	}
	for name, types := range names {
		for _, qtype := range types {
			for i, v := range variants {
				if many := len(types) > 10; many && qtype != mdns.TypeA && qtype != mdns.TypeTXT && i > 0 && v.name != "DO" && v.name != "mixed case" {
					continue // each type in some ways, some types in each
				}
				m := question(name, qtype)
				if v.put != nil {
					v.put(m)
				}
				b, err := m.Pack()
				if err != nil {
					t.Fatal(name, v.name, err)
				}
				if v.bytes != nil {
					if name == "." {
						continue // they change the name
					}
					b = v.bytes(b)
				}
				each(fmt.Sprintf("%s %s, %s", name, mdns.Type(qtype), v.name), b, v, name)
			}
		}
	}
}

// TestHitsAsTheChain sends a corpus of queries to the fast path and through the chain, over UDP and TCP, and with each bound of an answer's
// size. A plain query with an entry must be a hit, and the chain must answer all others.
func TestHitsAsTheChain(t *testing.T) {
	for size, text := range map[uint16]string{1232: pairCorefile, 512: strings.ReplaceAll(pairCorefile, "    ask\n", "    ask\n    bufsize 512\n")} {
		synctest.Test(t, func(t *testing.T) { hitsAsTheChain(t, size, newPair(t, text)) })
	}
}

func hitsAsTheChain(t *testing.T, size uint16, p *pair) {
	corpus(t, func(what string, m []byte, v variant, name string) {
		if size != 1232 && !strings.Contains(name, "-") && !strings.HasPrefix(name, "alias") {
			return // its answers are short
		}
		for _, tcp := range []bool{false, true} {
			kept := p.slow(m, tcp)
			what := fmt.Sprintf("%d %s, TCP %t", size, what, tcp)
			if most := sizeFor(m, tcp, size); len(kept) > most || tcp && len(kept) > 2 && kept[2]&2 != 0 && !strings.HasPrefix(name, "size-6553") {
				t.Errorf("%s: an answer of %d bytes, at most %d", what, len(kept), most)
			}
			hit := p.same(t, what, m, tcp)
			if hit && !v.plain {
				t.Errorf("%s: answered before the chain", what)
			}
			if want := v.plain && keeps(m, name) && kept[2]&2 == 0; want != hit {
				t.Errorf("%s: before the chain: %t", what, hit)
			}
		}
	})
}

// sizeFor returns how many bytes the answer to a query may have: what its client takes, and over UDP at most bufsize.
func sizeFor(m []byte, tcp bool, bufsize uint16) int {
	r := new(mdns.Msg)
	if tcp || r.Unpack(m) != nil {
		return mdns.MaxMsgSize
	}
	if o := r.IsEdns0(); o != nil {
		return int(min(max(o.UDPSize(), mdns.MinMsgSize), bufsize))
	}
	return mdns.MinMsgSize
}

// keeps reports whether the answer to a plain query of the corpus is stored.
func keeps(m []byte, name string) bool {
	end := 12
	for m[end] != 0 {
		end += int(m[end]) + 1
	}
	switch qtype := binary.BigEndian.Uint16(m[end+1:]); qtype {
	case 0, mdns.TypeDS, mdns.TypeOPT, mdns.TypeIXFR, mdns.TypeAXFR:
		return false
	default:
		return name != "short.svc.cluster.local." && !strings.HasPrefix(name, "refused") && !strings.HasPrefix(name, "size-65536")
	}
}

// FuzzHitsAsTheChain sends any bytes as a query. The fast path must answer as the chain would, or not at all.
func FuzzHitsAsTheChain(f *testing.F) {
	seen := map[string]bool{}
	corpus(f, func(_ string, m []byte, v variant, name string) {
		if len(m) <= 512 && !seen[v.name] {
			seen[v.name] = true
			f.Add(m, false)
			f.Add(m, true)
		}
	})
	p := newPair(f, pairCorefile)
	f.Fuzz(func(t *testing.T, m []byte, tcp bool) {
		p.slow(m, tcp)
		p.same(t, "fuzzed", m, tcp)
	})
}
