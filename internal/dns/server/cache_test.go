package server_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mdns "github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
)

// exchangeRaw sends bytes and returns the bytes that come back.
func exchangeRaw(t *testing.T, network, at string, q []byte) []byte {
	t.Helper()
	conn, err := net.Dial(network, at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if network == "tcp" {
		q = append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...)
	}
	if _, err := conn.Write(q); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 65537)
	n, err := conn.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	if network != "tcp" {
		return b[:n]
	}
	for n < 2 || n < 2+int(binary.BigEndian.Uint16(b)) {
		m, err := conn.Read(b[n:])
		if err != nil {
			t.Fatal(err)
		}
		n += m
	}
	return b[2:n]
}

// many answers with as many addresses as the name says: n3.example.
func many(q *mdns.Msg) *mdns.Msg {
	m := new(mdns.Msg).SetReply(q)
	m.RecursionAvailable = true
	name := q.Question[0].Name
	n := 0
	fmt.Sscanf(strings.ToLower(name), "n%d.", &n)
	switch {
	case strings.HasPrefix(strings.ToLower(name), "nx"):
		m.Rcode = mdns.RcodeNameError
		m.Ns = []mdns.RR{&mdns.SOA{Hdr: mdns.RR_Header{Name: "example.org.", Rrtype: mdns.TypeSOA, Class: mdns.ClassINET, Ttl: 30},
			Ns: "ns.example.org.", Mbox: "h.example.org.", Minttl: 30}}
	default:
		for i := range n {
			m.Answer = append(m.Answer, &mdns.A{Hdr: mdns.RR_Header{Name: name, Rrtype: mdns.TypeA, Class: mdns.ClassINET, Ttl: 30},
				A: net.IPv4(192, 0, 2, byte(i))})
		}
	}
	if q.IsEdns0() != nil {
		m.SetEdns0(4096, false)
	}
	return m
}

// TestCacheOnTheWire asks over real sockets what was asked before, in every way in which clients differ, and holds each hit
// against the very bytes that it must be: header, question, records and OPT.
func TestCacheOnTheWire(t *testing.T) {
	const ttl = 3000 // seconds: nothing ends or is fetched anew in the test, however busy the machine is
	up, again := newForgetful(t, func(q *mdns.Msg) *mdns.Msg {
		m := many(q)
		for _, rr := range append(m.Answer, m.Ns...) {
			rr.Header().Ttl = ttl
			if soa, ok := rr.(*mdns.SOA); ok {
				soa.Minttl = ttl
			}
		}
		return m
	})
	cfg := config(t, up)
	cfg.Cache.NegativeTTL = ttl * time.Second
	start(t, cfg)
	at := netip.AddrPortFrom(cfg.Addresses[0], cfg.Port).String()
	for _, name := range []string{"n1.example.org.", "n3.example.org.", "nx.example.org."} {
		ask(t, "udp", at, question(name, mdns.TypeA))
		do := question(name, mdns.TypeA)
		do.SetEdns0(1232, true)
		ask(t, "tcp", at, do)
	}
	again.Store(true)
	id, firsts := uint16(100), map[int]int{}
	for _, network := range []string{"udp", "tcp"} {
		for _, name := range []string{"n1.example.org.", "N3.eXample.ORG.", "nx.example.org."} {
			for _, opt := range []string{"", "512", "1232", "4096", "do"} {
				for _, flags := range []uint16{0x0100, 0x0000, 0x0120} { // RD; none; RD and AD
					id++
					q := binary.BigEndian.AppendUint16(nil, id)
					q = binary.BigEndian.AppendUint16(q, flags)
					q = append(q, 0, 1, 0, 0, 0, 0, 0, 0)
					for _, label := range strings.Split(strings.TrimSuffix(name, "."), ".") {
						q = append(append(q, byte(len(label))), label...)
					}
					q = append(q, 0, 0, 1, 0, 1)
					end := len(q)
					var wantOPT []byte
					if opt != "" {
						size, bits := uint16(1232), byte(0)
						fmt.Sscan(opt, &size)
						if opt == "do" {
							bits = 0x80
						}
						q[11] = 1
						q = append(q, 0, 0, 41, byte(size>>8), byte(size), 0, 0, bits, 0, 0, 0)
						size = min(size, 1232) // bufsize
						wantOPT = []byte{0, 0, 41, byte(size >> 8), byte(size), 0, 0, bits, 0, 0, 0}
					}
					what := fmt.Sprintf("%s %s opt %q flags %x", network, name, opt, flags)
					got := exchangeRaw(t, network, at, q)

					records, rcode := 0, byte(0)
					fmt.Sscanf(strings.ToLower(name), "n%d.", &records)
					want := binary.BigEndian.AppendUint16(nil, id)
					authority := byte(0)
					if records == 0 {
						rcode, authority = 3, 1
					}
					want = append(want, 0x80|byte(flags>>8)&1, 0x80|rcode, 0, 1, 0, byte(records), 0, authority, 0, byte(len(wantOPT)/11))
					want = append(want, q[12:end]...)
					first := 0 // the addresses take turns
					if records > 1 && len(got) >= end+16 {
						first = int(got[end+15])
						firsts[first]++
					}
					for i := range records {
						want = append(want, 0xc0, 12, 0, 1, 0, 1, 0, 0, ttl>>8, ttl&0xff, 0, 4, 192, 0, 2, byte((first+i)%records))
					}
					if records == 0 {
						// The zone is the question's, from its second label on; so are the ends of the SOA's names.
						want = append(want, 0xc0, 15, 0, 6, 0, 1, 0, 0, ttl>>8, ttl&0xff, 0, 5+4+20, 2, 'n', 's', 0xc0, 15, 1, 'h', 0xc0, 15)
						want = append(want, make([]byte, 16)...)
						want = append(want, 0, 0, ttl>>8, ttl&0xff)
					}
					want = append(want, wantOPT...)
					older(want, got, end, records+int(authority))
					if !bytes.Equal(want, got) {
						t.Errorf("%s:\n%s", what, cmp.Diff(want, got))
					}
				}
			}
		}
	}
	if firsts[0] != 10 || firsts[1] != 10 || firsts[2] != 10 {
		t.Errorf("in front, by address: %v, want 10 each", firsts)
	}
}

// older takes the TTLs of got over into want where they are lower, since time goes by. TestHitTTL shows by how much.
func older(want, got []byte, off, records int) {
	if len(want) != len(got) {
		return
	}
	for range records {
		ttl := off + 6
		if w, g := binary.BigEndian.Uint32(want[ttl:]), binary.BigEndian.Uint32(got[ttl:]); g < w && g > 0 {
			binary.BigEndian.PutUint32(want[ttl:], g)
		}
		off = ttl + 6 + int(binary.BigEndian.Uint16(want[ttl+4:]))
	}
}

// TestCacheBehindPlugins: plugins that change or read answers on their way still do, for hits too.
func TestCacheBehindPlugins(t *testing.T) {
	up, again := newForgetful(t, many)
	cfg := config(t, up)
	cfg.Snippets = map[string]string{".": "rewrite name suffix .old.example. .example.org. answer auto"}
	start(t, cfg)
	at := netip.AddrPortFrom(cfg.Addresses[0], cfg.Port).String()
	for range 3 {
		m := ask(t, "udp", at, question("n2.old.example.", mdns.TypeA))
		if len(m.Answer) != 2 || m.Answer[0].Header().Name != "n2.old.example." || m.Question[0].Name != "n2.old.example." {
			t.Errorf("rewritten: %v", m)
		}
		again.Store(true)
		m = ask(t, "udp", at, question("n2.example.org.", mdns.TypeA))
		if len(m.Answer) != 2 || m.Answer[0].Header().Name != "n2.example.org." {
			t.Errorf("as it is: %v", m)
		}
	}
}

// TestCacheOverReloads: twenty reloads lose nothing of what blocks know that answer as before, and nothing is said that a
// block's old upstream said.
func TestCacheOverReloads(t *testing.T) {
	up, again := newForgetful(t, func(q *mdns.Msg) *mdns.Msg {
		m := address("10.0.0.1")(q)
		for _, rr := range m.Answer {
			rr.Header().Ttl = 3000 // nothing ends in the test, however busy the machine is
		}
		return m
	})
	one, two := newUpstream(t, address("10.1.0.1")), newUpstream(t, address("10.1.0.2"))
	cfg := config(t, up)
	cfg.StubDomains = map[string][]nameserver.Address{"corp.example": servers(one.addr)}
	cfg.LastResort = servers(up.addr)
	s := start(t, cfg)
	at := netip.AddrPortFrom(cfg.Addresses[0], cfg.Port).String()
	names := []string{"a.cluster.local.", "b.example.org."}
	for _, n := range names {
		wantA(t, ask(t, "udp", at, question(n, mdns.TypeA)), "10.0.0.1")
	}
	wantA(t, ask(t, "udp", at, question("www.corp.example.", mdns.TypeA)), "10.1.0.1")
	again.Store(true)
	for i := range 20 {
		next := cfg
		next.StubDomains = map[string][]nameserver.Address{"corp.example": servers(one.addr), fmt.Sprintf("s%d.example", i): servers(two.addr)}
		if i%2 == 0 {
			next.StubDomains["corp.example"] = servers(two.addr)
		}
		if i%3 == 0 { // a redirect comes, and goes
			next.Cluster = append(slices.Clone(next.Cluster), servers("127.0.0.9:5353")...)
			next.LastResort = append(slices.Clone(next.LastResort), servers("127.0.0.9:5353")...)
		}
		next.Queries = []corefile.Queries{corefile.QueriesOff, corefile.QueriesErrors}[i%2]
		next.Cache.Entries = 2000 + i
		if err := s.Restart(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			wantA(t, ask(t, "udp", at, question(n, mdns.TypeA)), "10.0.0.1")
		}
		wantA(t, ask(t, "udp", at, question("www.corp.example.", mdns.TypeA)), []string{"10.1.0.2", "10.1.0.1"}[i%2])
	}
}
