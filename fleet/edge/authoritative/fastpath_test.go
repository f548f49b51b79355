package authoritative_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/neardns/neardns/fleet/edge/authoritative"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/metrics"
	"github.com/neardns/neardns/internal/dns/queryinfo"
	"github.com/neardns/neardns/pkg/testutil"
)

// pair is one edge's chain, which is queried in both ways: by its plugins, and before them.
type pair struct {
	*authoritative.Server
	chain *corefile.Chain
	at    netip.AddrPort
	hits  fastpath.Handler
	draw  uint64 // of either way
}

// newPair serves records by a plugin chain as neardns-edge does, with world as its locator.
func newPair(t testing.TB, o authoritative.Options, records []dns.RR, watch authoritative.Watch) *pair {
	t.Helper()
	p := &pair{Server: authoritative.New(o), at: netip.MustParseAddrPort("127.0.0.1:5353")}
	testutil.Must(t, p.Taker(origin, watch)(records))
	p.SetLocator(world())
	p.SetDraw(func() uint64 { return p.draw })
	b := corefile.NewBuilder(slog.New(slog.DiscardHandler), corefile.Plugin{Name: "metrics", Setup: metrics.Setup}, corefile.Plugin{Name: authoritative.Name, Setup: p.Setup})
	var err error
	p.chain, err = b.Build(corefile.Config{Addresses: []netip.Addr{p.at.Addr()}, Port: p.at.Port(), Misses: 1024, Shared: true, FastPath: true}, nil)
	testutil.Must(t, err)
	t.Cleanup(func() {
		testutil.Check(t, p.chain.Close(true))
	})
	if p.hits = p.chain.FastPath(p.at); p.hits == nil {
		t.Fatal("nobody stands before the chain")
	}
	return p
}

// fast queries the fast path; ok is false if the plugin chain must answer.
func (p *pair) fast(m []byte, from netip.Addr, tcp bool) (answer []byte, ok bool) {
	b, _, ok := p.hits.Answer([]byte("before"), &fastpath.Query{Wire: m, Client: from, TCP: tcp, Received: time.Unix(0, 0)})
	if !ok || !bytes.HasPrefix(b, []byte("before")) {
		return nil, false
	}
	return b[len("before"):], true
}

// slow queries the plugin chain, as package listener does. It returns nil if the DNS library does not accept the message as a query, or if
// there is no answer.
func (p *pair) slow(m []byte, from netip.Addr, overTCP bool) *dns.Msg {
	if len(m) < 12 {
		return nil
	}
	word := func(i int) uint16 { return binary.BigEndian.Uint16(m[2*i:]) }
	head := dns.Header{Id: word(0), Bits: word(1), Qdcount: word(2), Ancount: word(3), Nscount: word(4), Arcount: word(5)}
	r := new(dns.Msg)
	if dns.DefaultMsgAcceptFunc(head) != dns.MsgAccept || r.Unpack(m) != nil {
		return nil
	}
	w := &writer{from: udp(from.String())}
	if overTCP {
		w.from = tcp(from.String())
	}
	p.chain.ServeDNS(p.at, w, r, &queryinfo.Query{Client: from})
	return w.answer
}

// same queries both ways, and reports whether the one before the chain answered: then by the same bytes as the chain, whose names are
// shortened here, since CoreDNS's writer leaves them long where there is room. Where the query's letters are not all small, the zone's
// names may have its letters in the answer.
func (p *pair) same(t *testing.T, what string, m []byte, from netip.Addr, tcp bool) bool {
	t.Helper()
	got, ok := p.fast(m, from, tcp)
	if !ok {
		return false
	}
	answer := p.slow(m, from, tcp)
	if answer == nil {
		t.Fatalf("%s: %x: the chain says nothing, the way before it %x", what, m, got)
	}
	answer.Compress = true
	want := testutil.Packed(t, answer)
	if name := answer.Question[0].Name; name != strings.ToLower(name) {
		var ours dns.Msg
		if err := ours.Unpack(got); err != nil || ours.Question[0].Name != name {
			t.Fatalf("%s: %x: %v", what, got, err)
		}
		if a, b := strings.ToLower(answer.String()), strings.ToLower(ours.String()); a != b || len(got) > len(want) {
			t.Fatalf("%s: %x:\n%s\n%s", what, m, a, b)
		}
		return true
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: %x:\nbefore the chain %x\nthe chain        %x\n%v", what, m, got, want, answer)
	}
	return true
}

// shapes changes flags, upper and lower case, and EDNS of a query at random, so that the fast path can answer some and not others.
func shapes(rng *rand.Rand, m *dns.Msg) {
	m.RecursionDesired, m.CheckingDisabled, m.AuthenticatedData = rng.IntN(2) == 0, rng.IntN(4) == 0, rng.IntN(4) == 0
	if rng.IntN(3) == 0 {
		letters := []byte(m.Question[0].Name)
		for i, c := range letters {
			if c >= 'a' && c <= 'z' && rng.IntN(2) == 0 {
				letters[i] = c - 'a' + 'A'
			}
		}
		m.Question[0].Name = string(letters)
	}
	if rng.IntN(4) == 0 {
		return
	}
	m.SetEdns0([]uint16{0, 511, 512, 700, 1232, 4096, 65535}[rng.IntN(7)], rng.IntN(3) == 0)
	opt := m.IsEdns0()
	if rng.IntN(8) == 0 {
		opt.Hdr.Ttl |= uint32(rng.IntN(1 << 16)) // flags
	}
	if rng.IntN(30) == 0 {
		opt.SetVersion(1)
	}
	for range rng.IntN(4) {
		switch rng.IntN(5) {
		case 0:
			opt.Option = append(opt.Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: hex.EncodeToString(make([]byte, 8*rng.IntN(3)))})
		case 1:
			opt.Option = append(opt.Option, &dns.EDNS0_NSID{Code: dns.EDNS0NSID})
		case 2:
			opt.Option = append(opt.Option, &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Address: net.IPv4zero})
		default:
			a := netip.AddrFrom4([4]byte{10, byte(rng.IntN(4)), byte(rng.IntN(3)), byte(rng.IntN(2))})
			if rng.IntN(3) == 0 {
				a = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, byte(rng.IntN(3)), byte(rng.IntN(2))})
			}
			p, err := a.Prefix(rng.IntN(a.BitLen() + 1))
			if err != nil {
				panic(err)
			}
			o := &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: uint8(p.Bits()), Address: p.Addr().AsSlice()}
			if a.Is6() {
				o.Family = 2
			}
			if rng.IntN(8) == 0 {
				o.SourceScope = uint8(rng.IntN(33))
			}
			opt.Option = append(opt.Option, o)
		}
	}
}

// manifold is a zone with hosts of each kind: by geo and weight, with health, both families or one, simple, full, the apex, names with
// other records, a delegated one, aliases and wildcards.
func manifold(t testing.TB) []dns.RR {
	t.Helper()
	app, v4, few := "app."+origin, "v4."+origin, "few."+origin
	check := &zone.Health{Protocol: zone.TCP, Port: 443}
	irish := pub(app, "ie", 1, "192.0.2.1", "192.0.2.2", "2001:db8::1")
	german := pub(app, "de", 3, "192.0.2.3")
	german.DefaultGeo = true
	far := pub("far."+origin, "", 1)
	far.Target = "lb.cloud.example."
	many := zone.Publication{Host: "many." + origin, Strategy: zone.Simple}
	for i := range 90 {
		many.Addresses = append(many.Addresses, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
	}
	ps := []zone.Publication{irish, german, pub(app, "geo-na", 2, "192.0.2.4", "2001:db8::4"), pub(v4, "ie", 0, "192.0.2.5"), pub(v4, "", 5, "192.0.2.6"),
		{Host: few, Strategy: zone.Simple, Addresses: addresses("192.0.2.7", "192.0.2.8", "2001:db8::8")}, many, far, pub("far."+origin, "", 1, "192.0.2.9"),
		pub(origin, "ie", 1, "192.0.2.10"), pub("*.any."+origin, "", 1, "192.0.2.11"), pub("app.child."+origin, "", 1, "192.0.2.12")}
	for i := range ps {
		if i%2 == 0 {
			ps[i].Health = check
		}
	}
	return append(append(base(t), published(ps...)...), rrs(t, "v4 60 IN TXT \"beside\"\nwww 60 IN CNAME app\nchild 60 IN NS ns.child\nns.child 60 IN A 198.51.100.1\n"+
		"@ 60 IN MX 10 mail\nmail 60 IN A 198.51.100.25\n")...)
}

// TestHitsAsTheChain puts queries of all shapes: the handler before the chain answers as the chain does, or leaves it to the chain.
func TestHitsAsTheChain(t *testing.T) {
	rng := rand.New(rand.NewPCG(15, 20))
	p := newPair(t, authoritative.Options{Resolvers: []netip.Prefix{resolver, netip.MustParsePrefix("2001:db8:1::/48")}}, manifold(t), sick(rng))
	names := []string{"app.", "v4.", "few.", "many.", "far.", "", "x.any.", "any.", "app.child.", "www.", "ns.", "none.", "x.app.", "klb.app.", "cluster00.klb.app."}
	types := []uint16{dns.TypeA, dns.TypeA, dns.TypeA, dns.TypeAAAA, dns.TypeAAAA, dns.TypeTXT, dns.TypeMX, dns.TypeHTTPS, dns.TypeSOA, dns.TypeNS, dns.TypeANY,
		dns.TypeCNAME, dns.TypeAXFR, dns.TypeDS, dns.TypeMAILB, dns.TypeNULL, dns.TypeRRSIG}
	answered := map[string]int{}
	const rounds = 12_000
	for range rounds {
		name, qtype := names[rng.IntN(len(names))], types[rng.IntN(len(types))]
		m := question(name+origin, qtype)
		shapes(rng, m)
		b, err := m.Pack()
		if err != nil {
			continue // a subnet option that the library does not write
		}
		from := netip.MustParseAddr([]string{"192.0.2.200", "10.1.0.1", "10.3.0.1", "172.16.0.1", "2001:db8:1::7"}[rng.IntN(5)])
		p.draw = rng.Uint64()
		if p.same(t, name+" "+dns.TypeToString[qtype], b, from, rng.IntN(4) == 0) {
			answered[name+dns.TypeToString[qtype]]++
			if m.IsEdns0() != nil && len(m.IsEdns0().Option) > 0 {
				answered["options"]++
			}
		}
	}
	for _, must := range []string{"app.A", "app.AAAA", "app.HTTPS", "v4.A", "v4.AAAA", "few.A", "few.AAAA", "many.A", "many.AAAA", "A", "AAAA", "HTTPS", "options"} {
		if answered[must] < 20 {
			t.Errorf("%s was answered before the chain %d times", must, answered[must])
		}
	}
	for _, never := range []string{"far.A", "x.any.A", "app.child.A", "www.A", "none.A", "v4.TXT", "SOA", "NS", "app.ANY", "app.AXFR", "ANY"} {
		if answered[never] > 0 {
			t.Errorf("%s was answered before the chain", never)
		}
	}
}

// FuzzHitsAsTheChain puts any bytes as a query.
func FuzzHitsAsTheChain(f *testing.F) {
	rng := rand.New(rand.NewPCG(15, 21))
	for _, name := range []string{"app.", "v4.", "many.", "", "far."} {
		for range 6 {
			m := question(name+origin, []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeHTTPS}[rng.IntN(3)])
			shapes(rng, m)
			if b, err := m.Pack(); err == nil {
				f.Add(b, rng.Uint64(), rng.IntN(2) == 0)
			}
		}
	}
	p := newPair(f, authoritative.Options{Resolvers: []netip.Prefix{resolver}}, manifold(f), unwatched)
	f.Fuzz(func(t *testing.T, m []byte, draw uint64, tcp bool) {
		p.draw = draw
		for _, from := range []netip.Addr{resolver.Addr(), netip.MustParseAddr("10.1.0.1")} {
			p.same(t, "any bytes", m, from, tcp)
		}
	})
}

// TestHitsOfRandomZones is the differential test over zones as TestSubset has them, damaged ones too.
func TestHitsOfRandomZones(t *testing.T) {
	rng := rand.New(rand.NewPCG(15, 22))
	p := newPair(t, authoritative.Options{}, base(t), unwatched)
	answered := 0
	for range 150 {
		records := append(randomZone(t, rng), base(t)...)
		testutil.Must(t, p.Taker(origin, sick(rng))(records))
		for _, name := range []string{"", "a.", "b.a.", "q.a.", "c.child.", "e.", "x.", "f.a."} {
			for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT, dns.TypeHTTPS} {
				m := question(name+origin, qtype)
				shapes(rng, m)
				b, err := m.Pack()
				if err != nil {
					continue
				}
				p.draw = rng.Uint64()
				if p.same(t, name, b, netip.AddrFrom4([4]byte{10, byte(rng.IntN(4)), 0, 1}), rng.IntN(4) == 0) {
					answered++
				}
			}
		}
	}
	if answered < 500 {
		t.Errorf("%d answers before the chain: the test shows little", answered)
	}
}

// TestHitsAreCountedAlike: the edge's counts and CoreDNS's grow by the same for either, but for times and for the answers' sizes, which
// CoreDNS counts before their names are shortened.
func TestHitsAreCountedAlike(t *testing.T) {
	p := newPair(t, authoritative.Options{}, manifold(t), unwatched)
	from := netip.MustParseAddr("10.1.0.1")
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(p.Collector())
	counts := func() map[string]float64 {
		out := map[string]float64{}
		for _, g := range []prometheus.Gatherer{registry, prometheus.DefaultGatherer} {
			families, err := g.Gather()
			testutil.Must(t, err)
			for _, f := range families {
				if !strings.HasPrefix(f.GetName(), "coredns_") && !strings.HasPrefix(f.GetName(), "neardns_edge_answers") {
					continue
				}
				for _, m := range f.GetMetric() {
					key := f.GetName() + keyOf(m)
					if c := m.GetCounter(); c != nil {
						out[key] = c.GetValue()
					}
					if h := m.GetHistogram(); h != nil {
						out[key] = float64(h.GetSampleCount())
					}
				}
			}
		}
		return out
	}
	grow := func(ask func(m []byte, tcp bool)) map[string]float64 {
		before := counts()
		for _, name := range []string{"app.", "v4.", "few."} {
			for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeHTTPS} {
				for _, tcp := range []bool{false, true} {
					m := question(name+origin, qtype)
					m.SetEdns0(1232, tcp)
					ask(testutil.Packed(t, m), tcp)
				}
			}
		}
		after := counts()
		maps.DeleteFunc(after, func(k string, v float64) bool { return v == before[k] })
		for k := range after {
			after[k] -= before[k]
		}
		return after
	}
	slow := grow(func(m []byte, tcp bool) { p.slow(m, from, tcp) })
	fast := grow(func(m []byte, tcp bool) {
		if _, ok := p.fast(m, from, tcp); !ok {
			t.Errorf("left to the chain: %x", m)
		}
	})
	if diff := cmp.Diff(slow, fast); diff != "" || len(slow) < 12 {
		t.Errorf("counted otherwise (-chain +before), %d series:\n%s", len(slow), diff)
	}
}

func keyOf(m *dto.Metric) string {
	var out []string
	for _, l := range m.GetLabel() {
		out = append(out, l.GetName()+"="+l.GetValue())
	}
	return strings.Join(out, ",")
}

// TestHitsAreLimited: beyond its rate a network gets every second answer as an empty one, with its OPT, and else none; not over TCP.
func TestHitsAreLimited(t *testing.T) {
	p := newPair(t, authoritative.Options{Rate: authoritative.Rate{Answers: 1, Slip: 2}}, manifold(t), unwatched)
	from := netip.MustParseAddr("10.1.0.1")
	m := question("app."+origin, dns.TypeA)
	m.SetEdns0(1232, false)
	b := testutil.Packed(t, m)
	var said []string
	for range 8 {
		got, ok := p.fast(b, from, false)
		if !ok {
			t.Fatal("left to the chain, which counts it again")
		}
		var a dns.Msg
		switch {
		case len(got) == 0:
			said = append(said, "none")
		case a.Unpack(got) != nil:
			t.Fatalf("%x", got)
		case a.Truncated && len(a.Answer) == 0 && a.IsEdns0() != nil && !a.Authoritative:
			said = append(said, "slip")
		default:
			said = append(said, "full")
		}
	}
	if want := []string{"full", "full", "none", "slip", "none", "slip", "none", "slip"}; !slices.Equal(said, want) {
		t.Errorf("%v, want %v", said, want)
	}
	if p.slow(b, from, false) != nil { // an odd one, so none
		t.Error("the chain has a limit of its own")
	}
	if got, ok := p.fast(b, from, true); !ok || len(got) < 40 {
		t.Errorf("over TCP: %x, %t", got, ok)
	}
}

// TestNoAllocationOfHits: a hit takes no memory: counted, limited, located, chosen, with a client subnet and without.
func TestNoAllocationOfHits(t *testing.T) {
	records := append(base(t), published(crowd()...)...)
	p := newPair(t, authoritative.Options{Rate: authoritative.Rate{Answers: 1 << 30}, Resolvers: []netip.Prefix{resolver}}, records, unwatched)
	b := make([]byte, 0, 4096)
	for name, m := range map[string]*dns.Msg{"plain": question("app."+origin, dns.TypeA), "denied": question("app."+origin, dns.TypeAAAA),
		"subnet": withSubnet(question("app."+origin, dns.TypeA), "10.2.3.0/24")} {
		q := &fastpath.Query{Wire: testutil.Packed(t, m), Client: resolver.Addr(), Received: time.Unix(0, 0)}
		if allocs := testing.AllocsPerRun(1_000, func() {
			p.draw += 1 << 50
			if _, _, ok := p.hits.Answer(b, q); !ok {
				t.Fatal("left to the chain")
			}
		}); allocs != 0 {
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
}
