package authoritative_test

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin/file"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/edge/authoritative"
	"github.com/neardns/neardns/fleet/edge/geo"
	"github.com/neardns/neardns/fleet/edge/healthcheck"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/testutil"
)

const origin = "shared.example."

// rrs parses lines of a zone file.
func rrs(t testing.TB, text string) (out []dns.RR) {
	t.Helper()
	p := dns.NewZoneParser(strings.NewReader(text), origin, "")
	for rr, ok := p.Next(); ok; rr, ok = p.Next() {
		out = append(out, rr)
	}
	testutil.Must(t, p.Err())
	return out
}

// base is what every zone has.
func base(t testing.TB) []dns.RR {
	t.Helper()
	return rrs(t, "@ 60 IN SOA ns hostmaster 7 60 60 3600 60\n@ 60 IN NS ns\nns 60 IN A 198.51.100.53\n")
}

// published returns the records of publications in one zone. Each has a cluster of its own: cluster00, cluster01 and so on.
func published(ps ...zone.Publication) (out []dns.RR) {
	empty, err := zone.Parse(origin, []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: origin, Rrtype: dns.TypeSOA, Class: dns.ClassINET}}})
	if err != nil {
		panic(err)
	}
	for i, p := range ps {
		if p.TTL == 0 {
			p.TTL = 60
		}
		who := zone.Writer{Identity: zone.Identity{Cluster: fmt.Sprintf("cluster%02d", i), Instance: "one"}}
		step := empty.Plan(who, zone.Memory{}, p.Normal())
		for _, rr := range step.Message.Changes {
			if !slices.ContainsFunc(out, func(o dns.RR) bool { return dns.IsDuplicate(o, rr) }) {
				out = append(out, rr)
			}
		}
	}
	return out
}

func addresses(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// every is the checks of all clusters.
func every(checks map[string][]healthcheck.Check) []healthcheck.Check {
	return slices.Concat(slices.Collect(maps.Values(checks))...)
}

// unwatched probes nothing.
func unwatched(string, map[string][]healthcheck.Check) map[healthcheck.Check]authoritative.Target {
	return nil
}

// serve is a server of one zone, with world as its locator.
func serve(t testing.TB, o authoritative.Options, records []dns.RR) *authoritative.Server {
	t.Helper()
	return serveWatched(t, o, records, unwatched)
}

func serveWatched(t testing.TB, o authoritative.Options, records []dns.RR, watch authoritative.Watch) *authoritative.Server {
	t.Helper()
	z, err := authoritative.Compile(origin, records, watch)
	testutil.Must(t, err)
	s := authoritative.New(o)
	s.Set(z)
	s.SetLocator(world())
	return s
}

// plain is a plain server's zone with the same records.
func plain(t testing.TB, records []dns.RR) *file.Zone {
	t.Helper()
	z := file.NewZone(origin, "")
	for _, rr := range records {
		testutil.Must(t, z.Insert(dns.Copy(rr)))
	}
	return z
}

// world has Irish, German and American networks.
func world() *geo.Locator {
	l := new(geo.Locator)
	for network, p := range map[string]geo.Place{"10.1.0.0/16": {"ie", "geo-eu"}, "10.2.0.0/16": {"de", "geo-eu"}, "10.3.0.0/16": {"us-ca", "us", "geo-na"}, "2001:db8:1::/48": {"ie", "geo-eu"}} {
		l.Ranges.Add(netip.MustParsePrefix(network), p)
	}
	return l
}

// writer takes one answer, as it comes over the wire.
type writer struct {
	dns.ResponseWriter
	from   net.Addr
	answer *dns.Msg
}

func (w *writer) LocalAddr() net.Addr  { return &net.UDPAddr{IP: net.IPv4(192, 0, 2, 53), Port: 53} }
func (w *writer) RemoteAddr() net.Addr { return w.from }
func (w *writer) TsigStatus() error    { return nil }

func (w *writer) WriteMsg(m *dns.Msg) error {
	b, err := m.Pack()
	if err != nil {
		return err
	}
	w.answer = new(dns.Msg)
	return w.answer.Unpack(b)
}

func udp(from string) net.Addr { return &net.UDPAddr{IP: net.ParseIP(from), Port: 4000} }
func tcp(from string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(from), Port: 4000} }

// put returns the plugin's answer to a query; nil if there is none. If the plugin returns an error code for which CoreDNS would write the
// answer, put returns an answer with only that code.
func put(t testing.TB, s *authoritative.Server, from net.Addr, q *dns.Msg) *dns.Msg {
	t.Helper()
	w := &writer{from: from}
	code, err := s.ServeDNS(t.Context(), w, q)
	testutil.Must(t, err)
	if w.answer == nil && code != dns.RcodeSuccess {
		w.answer = new(dns.Msg).SetRcode(q, code)
	}
	return w.answer
}

func question(name string, qtype uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, qtype) }

// withSubnet adds an EDNS client subnet.
func withSubnet(q *dns.Msg, network string) *dns.Msg {
	p := netip.MustParsePrefix(network)
	family := uint16(2)
	if p.Addr().Is4() {
		family = 1
	}
	q.SetEdns0(1232, false)
	q.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: family, SourceNetmask: uint8(p.Bits()), Address: p.Addr().AsSlice()}}
	return q
}

// said are an answer's records, short and sorted.
func said(m *dns.Msg) string {
	if m == nil {
		return "nothing"
	}
	var out []string
	for _, rr := range m.Answer {
		out = append(out, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	slices.Sort(out)
	if m.Rcode != dns.RcodeSuccess {
		out = append(out, dns.RcodeToString[m.Rcode])
	}
	return strings.Join(out, " ")
}
