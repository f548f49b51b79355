package authoritative_test

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/neardns/neardns/fleet/edge/authoritative"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/testutil"
)

// pub is a load-balanced publication.
func pub(host, geo string, weight uint32, texts ...string) zone.Publication {
	return zone.Publication{Host: host, Strategy: zone.LoadBalanced, Geo: geo, Weight: weight, Addresses: addresses(texts...)}
}

// TestAnswers has one row for each way to an answer.
func TestAnswers(t *testing.T) {
	app, any, alias := "app."+origin, "*.any."+origin, "alias."+origin
	german := pub(app, "de", 1, "192.0.2.2", "192.0.2.3")
	german.DefaultGeo = true
	anywhere := zone.Publication{Host: "*.far." + origin, Strategy: zone.LoadBalanced, Weight: 1, Target: "lb.cloud.example."}
	hostname := zone.Publication{Host: alias, Strategy: zone.LoadBalanced, Geo: "ie", Weight: 1, Target: "lb.cloud.example."}
	simple := zone.Publication{Host: "simple." + origin, Strategy: zone.Simple, Addresses: addresses("192.0.2.8")}
	records := append(base(t), published(pub(app, "ie", 1, "192.0.2.1", "2001:db8::1"), german,
		pub(app, "geo-na", 1, "192.0.2.4"), pub(any, "ie", 1, "192.0.2.5"), pub(any, "de", 1, "192.0.2.6"), hostname, anywhere, pub(alias, "de", 1, "192.0.2.7"),
		simple, pub(origin, "ie", 1, "192.0.2.9"), pub(origin, "de", 1, "192.0.2.10"))...)
	records = append(records, rrs(t, `www 60 IN CNAME app
out 60 IN CNAME elsewhere.test.
simple 60 IN A 198.51.100.8
named.any 60 IN TXT "a name of its own"
child 60 IN NS ns.child
ns.child 60 IN A 198.51.100.1
text 60 IN TXT "text"
`)...)
	s := serve(t, authoritative.Options{Resolvers: []netip.Prefix{netip.MustParsePrefix("192.0.2.200/32")}}, records)
	const irish, bavarian, californian, japanese = "10.1.0.1", "10.2.0.1", "10.3.0.1", "10.9.0.1"
	for name, row := range map[string]struct {
		from, name string
		qtype      uint16
		want       string
	}{
		"Ireland":                         {irish, app, dns.TypeA, "192.0.2.1"},
		"Ireland, IPv6":                   {irish, app, dns.TypeAAAA, "2001:db8::1"},
		"an IPv6 client":                  {"2001:db8:1::7", app, dns.TypeA, "192.0.2.1"},
		"Germany":                         {bavarian, app, dns.TypeA, "192.0.2.2 192.0.2.3"},
		"Germany has no IPv6: any":        {bavarian, app, dns.TypeAAAA, "2001:db8::1"},
		"America by its continent":        {californian, app, dns.TypeA, "192.0.2.4"},
		"nowhere: the default geo":        {japanese, app, dns.TypeA, "192.0.2.2 192.0.2.3"},
		"letters of the question":         {irish, "ApP.ShAreD.eXaMple.", dns.TypeA, "192.0.2.1"},
		"one cluster's name":              {bavarian, "cluster00.klb." + app, dns.TypeA, "192.0.2.1"},
		"one region's name":               {bavarian, "ie.klb." + app, dns.TypeA, "192.0.2.1"},
		"a wildcard":                      {bavarian, "x.any." + origin, dns.TypeA, "192.0.2.6"},
		"a wildcard, two labels":          {irish, "y.x.any." + origin, dns.TypeA, "192.0.2.5"},
		"a name beside a wildcard":        {irish, "named.any." + origin, dns.TypeA, ""},
		"below a name beside a wildcard":  {irish, "x.named.any." + origin, dns.TypeA, "NXDOMAIN"},
		"an alias of the zone's operator": {irish, "www." + origin, dns.TypeA, "192.0.2.1 app.shared.example."},
		"an alias out of the zone":        {irish, "out." + origin, dns.TypeA, "elsewhere.test."},
		"a cluster's hostname":            {irish, alias, dns.TypeA, "lb.cloud.example."},
		"a cluster's hostname, IPv6":      {irish, alias, dns.TypeAAAA, "lb.cloud.example."},
		"a hostname at a wildcard":        {irish, "x.far." + origin, dns.TypeA, "lb.cloud.example."},
		"beside a cluster's hostname":     {bavarian, alias, dns.TypeA, "192.0.2.7"},
		"simple: all, a foreign one too":  {irish, "simple." + origin, dns.TypeA, "192.0.2.8 198.51.100.8"},
		"simple has no IPv6":              {irish, "simple." + origin, dns.TypeAAAA, ""},
		"the apex":                        {bavarian, origin, dns.TypeA, "192.0.2.10"},
		"another type of a host":          {irish, app, dns.TypeTXT, ""},
		"another name":                    {irish, "text." + origin, dns.TypeTXT, `"text"`},
		"no name":                         {irish, "none." + origin, dns.TypeA, "NXDOMAIN"},
		"ANY":                             {irish, app, dns.TypeANY, `"RFC8482" ""`},
		"ANY of no name":                  {irish, "none." + origin, dns.TypeANY, "NXDOMAIN"},
		"AXFR":                            {irish, origin, dns.TypeAXFR, "REFUSED"},
		"IXFR":                            {irish, origin, dns.TypeIXFR, "REFUSED"},
		"another zone":                    {irish, "example.", dns.TypeA, "REFUSED"},
		"the root":                        {irish, ".", dns.TypeNS, "REFUSED"},
	} {
		m := put(t, s, udp(row.from), question(row.name, row.qtype))
		if got := said(m); got != row.want {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
		if m.RecursionAvailable {
			t.Errorf("%s: offers recursion", name)
		}
		for _, rr := range m.Answer {
			if rr.Header().Rrtype == row.qtype && len(m.Answer) == 1 && rr.Header().Name != row.name {
				t.Errorf("%s: the answer is of %s, not %s", name, rr.Header().Name, row.name)
			}
		}
	}
	m := put(t, s, udp(irish), question("www.child."+origin, dns.TypeA))
	if m.Authoritative || len(m.Ns) != 1 || len(m.Extra) != 1 || len(m.Answer) != 0 {
		t.Errorf("a delegated name is not referred to its servers: %v", m)
	}
}

// TestFull: a host that is full at its name has the newcomers below klb, and the edge answers with them.
func TestFull(t *testing.T) {
	app := "app." + origin
	var ps []zone.Publication
	for i := range 75 {
		ps = append(ps, pub(app, "", 1, netip.AddrFrom4([4]byte{192, 0, 2, byte(2 * i)}).String(), netip.AddrFrom4([4]byte{192, 0, 2, byte(2*i + 1)}).String()))
	}
	atHost := 0
	records := slices.DeleteFunc(published(ps...), func(rr dns.RR) bool {
		if rr.Header().Name == app && rr.Header().Rrtype == dns.TypeA {
			atHost++
			return atHost > 100
		}
		return false
	})
	s := serve(t, authoritative.Options{}, append(base(t), records...))
	got := map[string]bool{}
	for range 5_000 {
		for _, rr := range put(t, s, udp("10.1.0.1"), question(app, dns.TypeA)).Answer {
			got[rr.String()] = true
		}
	}
	if len(got) != 150 {
		t.Errorf("%d addresses were answered, want 150", len(got))
	}
}

// TestMetrics: names and labels are as Prometheus wants them, and each query is counted once.
func TestMetrics(t *testing.T) {
	app := "app." + origin
	s := serve(t, authoritative.Options{}, append(base(t), published(pub(app, "ie", 1, "192.0.2.1"))...))
	put(t, s, udp("10.1.0.1"), question(app, dns.TypeA))
	put(t, s, udp("10.2.0.1"), question(app, dns.TypeA))
	put(t, s, udp("10.2.0.1"), question(app, dns.TypeTXT))
	put(t, s, udp("10.2.0.1"), question("example.", dns.TypeTXT))
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(s.Collector())
	if problems, err := promtest.GatherAndLint(r); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	if err := promtest.GatherAndCompare(r, strings.NewReader(strings.ReplaceAll(`# TYPE neardns_edge_answers_total counter
neardns_edge_answers_total{reason="any"} 1
neardns_edge_answers_total{reason="default"} 0
neardns_edge_answers_total{reason="geo"} 1
neardns_edge_answers_total{reason="limited"} 0
neardns_edge_answers_total{reason="plain"} 1
neardns_edge_answers_total{reason="refused"} 1
neardns_edge_answers_total{reason="simple"} 0
neardns_edge_answers_total{reason="slipped"} 0
neardns_edge_answers_total{reason="unhealthy"} 0
`, "# TYPE", "# HELP neardns_edge_answers_total "+authoritative.AnswersHelp+"\n# TYPE")), "neardns_edge_answers_total"); err != nil {
		t.Error(err)
	}
}

// TestCrowdedName: a name with 5,000 addresses, which Knot and PowerDNS allow, is answered with 1,000 of them over TCP, and truncated over
// UDP.
func TestCrowdedName(t *testing.T) {
	app := "app." + origin
	records := append(base(t), published(zone.Publication{Host: app, Strategy: zone.Simple, Addresses: addresses("192.0.2.1")})...)
	for i := range 5_000 {
		records = append(records, &dns.A{Hdr: dns.RR_Header{Name: app, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(10, 9, byte(i>>8), byte(i))})
	}
	p := newPair(t, authoritative.Options{}, records, unwatched)
	m := testutil.Packed(t, question(app, dns.TypeA))
	seen := map[string]bool{}
	for range 30 {
		p.draw += 7_919 << 3
		b, ok := p.fast(m, netip.MustParseAddr("10.1.0.1"), true)
		var a dns.Msg
		if !ok || a.Unpack(b) != nil || len(a.Answer) != 1_000 || a.Truncated {
			t.Fatalf("over TCP: %t, %d bytes, %d addresses", ok, len(b), len(a.Answer))
		}
		seen[a.Answer[0].String()] = true
		if _, ok := p.fast(m, netip.MustParseAddr("10.1.0.1"), false); ok {
			t.Fatal("over UDP it does not fit")
		}
		if a := p.slow(m, netip.MustParseAddr("10.1.0.1"), false); !a.Truncated {
			t.Fatalf("over UDP: %v", a)
		}
	}
	if len(seen) < 27 {
		t.Errorf("of 30 answers %d begin differently", len(seen))
	}
}

// TestConfigure: other resolvers count from the next query on, a rate that stays keeps its account, and a zone that is dropped is
// refused.
func TestConfigure(t *testing.T) {
	app := "app." + origin
	rate := authoritative.Rate{Answers: 1, Slip: 1}
	s := serve(t, authoritative.Options{Rate: rate}, append(base(t), published(pub(app, "ie", 1, "192.0.2.1"), pub(app, "de", 1, "192.0.2.2"))...))
	ask := func(from string) *dns.Msg {
		return put(t, s, udp(from), withSubnet(question(app, dns.TypeA), "10.2.3.0/24"))
	}
	if m := ask("10.1.0.1"); said(m) != "192.0.2.1" || subnetOf(m) != nil {
		t.Errorf("not listed: %v", m)
	}
	s.Configure(authoritative.Options{Rate: rate, Resolvers: []netip.Prefix{netip.MustParsePrefix("10.1.0.1/32")}})
	if m := ask("10.1.0.1"); said(m) != "192.0.2.2" || subnetOf(m) == nil {
		t.Errorf("listed: %v", m)
	}
	if m := ask("10.1.0.1"); !m.Truncated {
		t.Errorf("the rate's account was lost: %v", m)
	}
	s.Configure(authoritative.Options{})
	if m := ask("10.1.0.1"); m.Truncated || said(m) != "192.0.2.1" {
		t.Errorf("without a rate: %v", m)
	}
	s.Drop(origin)
	if m := ask("10.1.0.1"); m.Rcode != dns.RcodeRefused {
		t.Errorf("dropped: %v", m)
	}
}

// DS at the apex of a zone is answered from the zone above it, if that is served (RFC 4035, section 3.1.4.1).
func TestDS(t *testing.T) {
	const child, ds = "child." + origin, "7 8 2 E2D3C916F6DEEAC73294E8268FB5885044A833FC5459588F4A9184CFC41A5766"
	apex := rrs(t, "child 60 IN SOA ns hostmaster 9 60 60 3600 60\nchild 60 IN NS ns\n")
	empty, err := zone.Parse(child, apex)
	testutil.Must(t, err)
	host := zone.Publication{Host: child, Strategy: zone.Simple, TTL: 60, Addresses: addresses("192.0.2.1")} // the fast path has its name
	step := empty.Plan(zone.Writer{Identity: zone.Identity{Cluster: "cluster00", Instance: "one"}}, zone.Memory{}, host.Normal())
	p := newPair(t, authoritative.Options{}, base(t), unwatched)
	p.Drop(origin)
	testutil.Must(t, p.Taker(child, unwatched)(append(apex, step.Message.Changes...)))
	wire := testutil.Packed(t, question(child, dns.TypeDS))
	for _, row := range []struct{ above, want, denied string }{
		{"", "", child},
		{"child 60 IN NS ns\n", "", origin},
		{"child 60 IN NS ns\nchild 60 IN DS " + ds + "\n", ds, ""},
	} {
		if row.above != "" {
			testutil.Must(t, p.Taker(origin, unwatched)(append(base(t), rrs(t, row.above)...)))
		}
		if _, ok := p.fast(wire, netip.MustParseAddr("10.1.0.1"), false); ok {
			t.Errorf("%q: the fast path answers", row.above)
		}
		m := p.slow(wire, netip.MustParseAddr("10.1.0.1"), false)
		if said(m) != row.want || !m.Authoritative || row.denied != "" && m.Ns[0].Header().Name != row.denied {
			t.Errorf("%q: %v", row.above, m)
		}
	}
}

// A zone that was not read yet is refused, and not answered from the zone above it, which would deny its names.
func TestNotReadYet(t *testing.T) {
	child := "child." + origin
	p := newPair(t, authoritative.Options{}, append(base(t), published(pub("*."+origin, "ie", 1, "192.0.2.1"))...), unwatched)
	set := p.Taker(child, unwatched)
	for _, name := range []string{child, "app." + child} {
		if m := put(t, p.Server, udp("10.1.0.1"), question(name, dns.TypeA)); m.Rcode != dns.RcodeRefused {
			t.Errorf("%s: %v", name, m)
		}
	}
	if n := promtest.CollectAndCount(p.Collector(), "neardns_edge_silent_clusters"); n != 1 {
		t.Errorf("%d zones have metrics, want 1", n)
	}
	testutil.Must(t, set(rrs(t, "child 60 IN SOA ns hostmaster 7 60 60 3600 60\napp.child 60 IN A 192.0.2.2\n")))
	if m := put(t, p.Server, udp("10.1.0.1"), question("app."+child, dns.TypeA)); said(m) != "192.0.2.2" {
		t.Errorf("read: %v", m)
	}
}

// TestNotify: a NOTIFY for the zone is passed to Options.Notified, whose result decides the answer.
func TestNotify(t *testing.T) {
	var from []string
	s := serve(t, authoritative.Options{Notified: func(zone string, sender netip.Addr) bool {
		from = append(from, zone+sender.String())
		return sender.String() == "192.0.2.53"
	}}, base(t))
	for _, row := range []struct {
		from, zone string
		want       int
	}{{"192.0.2.53", origin, dns.RcodeSuccess}, {"192.0.2.66", origin, dns.RcodeRefused}, {"192.0.2.53", "app." + origin, dns.RcodeRefused}} {
		q := new(dns.Msg).SetNotify(row.zone)
		if m := put(t, s, udp(row.from), q); m.Rcode != row.want || m.Opcode != dns.OpcodeNotify {
			t.Errorf("%v: %v", row, m)
		}
	}
	if want := []string{origin + "192.0.2.53", origin + "192.0.2.66"}; !slices.Equal(from, want) {
		t.Errorf("%v, want %v", from, want)
	}
}

// Below a DNAME and below a zone cut the edge answers as a plain server, whatever a cluster publishes there (RFC 6672, section 2.4; RFC
// 1034, section 4.2.1).
func TestBelowRedirections(t *testing.T) {
	host := func(name string) zone.Publication {
		return zone.Publication{Host: name + "." + origin, Strategy: zone.Simple, Addresses: addresses("192.0.2.1")}
	}
	records := append(base(t), published(host("y.dn"), host("a.b.dn"), host("*.dn"), host("y.other"), host("x.sub"), host("*.sub"), host("dn"))...)
	records = append(records, rrs(t, "dn 60 IN DNAME other\nsub 60 IN NS ns.sub\nns.sub 60 IN A 198.51.100.1\n")...)
	s, reference := serve(t, authoritative.Options{}, records), plain(t, records)
	for _, name := range []string{"y.dn", "a.b.dn", "z.dn", "*.dn", "dn", "x.sub", "z.sub", "*.sub", "sub", "y.other"} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT} {
			q := question(name+"."+origin, qtype)
			answer, authority, _, _ := reference.Lookup(t.Context(), request.Request{W: &writer{}, Req: q, Zone: origin}, q.Question[0].Name)
			m := put(t, s, udp("10.1.0.1"), q)
			if want := said(&dns.Msg{Answer: answer}); said(&dns.Msg{Answer: m.Answer}) != want || len(m.Ns) != len(authority) && len(answer) == 0 {
				t.Errorf("%s %s: %q, want %q:\n%v", name, dns.TypeToString[qtype], said(m), want, m)
			}
		}
	}
}

// A negative answer's SOA has the lower of its TTL and MINIMUM, by which resolvers keep the denial (RFC 2308, section 3). The SOA itself
// is answered with its own TTL.
func TestNegativeTTL(t *testing.T) {
	for soa, want := range map[string]uint32{
		"@ 300 IN SOA ns hostmaster 7 60 60 3600 60\n": 60,
		"@ 30 IN SOA ns hostmaster 7 60 60 3600 60\n":  30,
	} {
		app := "app." + origin
		p := newPair(t, authoritative.Options{}, append(rrs(t, soa+"@ 60 IN NS ns\nns 60 IN A 198.51.100.53\n"), published(pub(app, "ie", 1, "192.0.2.1"))...), unwatched)
		for _, q := range []*dns.Msg{question("none."+origin, dns.TypeA), question(app, dns.TypeMX), question(app, dns.TypeAAAA)} {
			wire := testutil.Packed(t, q)
			answers := []*dns.Msg{p.slow(wire, netip.MustParseAddr("10.1.0.1"), false)}
			if b, ok := p.fast(wire, netip.MustParseAddr("10.1.0.1"), false); ok {
				m := new(dns.Msg)
				testutil.Must(t, m.Unpack(b))
				answers = append(answers, m)
			}
			for _, m := range answers {
				if len(m.Ns) != 1 || m.Ns[0].Header().Ttl != want {
					t.Errorf("%s: %v, want the TTL %d", q.Question[0].String(), m.Ns, want)
				}
			}
		}
		m := put(t, serve(t, authoritative.Options{}, rrs(t, soa)), udp("10.1.0.1"), question(origin, dns.TypeSOA))
		if own := rrs(t, soa)[0].Header().Ttl; len(m.Answer) != 1 || m.Answer[0].Header().Ttl != own {
			t.Errorf("the SOA: %v, want the TTL %d", m.Answer, own)
		}
	}
}
