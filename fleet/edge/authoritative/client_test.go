package authoritative_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/edge/authoritative"
	"github.com/neardns/neardns/pkg/testutil"
)

var resolver = netip.MustParsePrefix("192.0.2.200/32")

// subnetOf is the option of an answer; nil for none.
func subnetOf(m *dns.Msg) *dns.EDNS0_SUBNET {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if s, ok := o.(*dns.EDNS0_SUBNET); ok {
				return s
			}
		}
	}
	return nil
}

// TestSubnet: the client subnet of a listed resolver counts, no other's; the scope is the network that matched.
func TestSubnet(t *testing.T) {
	app := "app." + origin
	s := serve(t, authoritative.Options{Resolvers: []netip.Prefix{resolver}}, append(base(t), published(pub(app, "ie", 1, "192.0.2.1"), pub(app, "de", 1, "192.0.2.2"))...))
	for name, row := range map[string]struct {
		from, network, name string
		want                string
		scope               int // -1: no option
	}{
		"listed":                       {"192.0.2.200", "10.2.3.0/24", app, "192.0.2.2", 16},
		"listed, wider than the match": {"192.0.2.200", "10.2.0.0/15", app, "192.0.2.2", 16},
		"listed, IPv6":                 {"192.0.2.200", "2001:db8:1::/56", app, "192.0.2.1", 48},
		"listed, no address":           {"192.0.2.200", "0.0.0.0/0", app, "", 0},
		"not listed":                   {"10.1.0.1", "10.2.3.0/24", app, "192.0.2.1", -1},
		"listed, a name of no choice":  {"192.0.2.200", "10.2.3.0/24", "ns." + origin, "198.51.100.53", 0},
		"listed, no name":              {"192.0.2.200", "10.2.3.0/24", "none." + origin, "NXDOMAIN", 0},
	} {
		m := put(t, s, udp(row.from), withSubnet(question(row.name, dns.TypeA), row.network))
		if got := said(m); row.want != "" && got != row.want {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
		o := subnetOf(m)
		switch {
		case row.scope < 0:
			if o != nil {
				t.Errorf("%s: the answer has %v", name, o)
			}
		case o == nil || int(o.SourceScope) != row.scope || int(o.SourceNetmask) != netip.MustParsePrefix(row.network).Bits() ||
			!o.Address.Equal(netip.MustParsePrefix(row.network).Addr().AsSlice()):
			t.Errorf("%s: the answer has %v, want scope %d", name, o, row.scope)
		}
	}
	for name, change := range map[string]func(*dns.EDNS0_SUBNET){
		"bits behind the network": func(o *dns.EDNS0_SUBNET) { o.Address = net.IPv4(10, 2, 3, 4) },
		"a scope":                 func(o *dns.EDNS0_SUBNET) { o.SourceScope = 8 },
		"too long":                func(o *dns.EDNS0_SUBNET) { o.SourceNetmask = 33 },
		"mapped":                  func(o *dns.EDNS0_SUBNET) { o.Family, o.Address, o.SourceNetmask = 2, net.IPv4(10, 2, 3, 0), 128 },
		"no family":               func(o *dns.EDNS0_SUBNET) { o.Family = 0 },
	} {
		q := withSubnet(question(app, dns.TypeA), "10.2.3.0/24")
		change(q.IsEdns0().Option[0].(*dns.EDNS0_SUBNET))
		if m := put(t, s, udp("192.0.2.200"), q); m.Rcode != dns.RcodeFormatError {
			t.Errorf("%s: %v", name, m)
		}
	}
	twice := withSubnet(question(app, dns.TypeA), "10.2.3.0/24")
	twice.IsEdns0().Option = append(twice.IsEdns0().Option, twice.IsEdns0().Option[0])
	if m := put(t, s, udp("192.0.2.200"), twice); m.Rcode != dns.RcodeFormatError {
		t.Errorf("two options: %v", m)
	}
}

// TestRate: a network gets its answers, then empty ones that say "truncated" and nothing by turns; over TCP it gets all, and its
// neighbours and the exempt notice nothing.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := "app." + origin
		s := serve(t, authoritative.Options{Rate: authoritative.Rate{Answers: 10, Slip: 2, Exempt: []netip.Prefix{netip.MustParsePrefix("10.7.0.0/16")}}},
			append(base(t), published(pub(app, "ie", 1, "192.0.2.1"))...))
		flood := func(from func(i int) net.Addr) (full, short, none int) {
			for i := range 1_000 {
				m := put(t, s, from(i), question(app, dns.TypeA))
				switch {
				case m == nil:
					none++
				case m.Truncated && len(m.Answer) == 0:
					short++
				default:
					full++
				}
			}
			return full, short, none
		}
		network := func(format string) func(i int) net.Addr {
			return func(i int) net.Addr { return udp(fmt.Sprintf(format, i%250)) }
		}
		if full, short, none := flood(network("10.1.1.%d")); full != 20 || short != 490 || none != 490 {
			t.Errorf("%d full, %d short, %d none of 1,000; want 20, 490, 490", full, short, none)
		}
		if full, _, _ := flood(network("10.1.2.%d")); full != 20 {
			t.Errorf("a neighbour got %d full answers, want 20", full)
		}
		if full, _, _ := flood(func(i int) net.Addr { return udp(fmt.Sprintf("2001:db8:0:1%02d::1", i%100)) }); full != 20 { // one /56
			t.Errorf("an IPv6 network got %d full answers, want 20", full)
		}
		if full, _, _ := flood(network("10.7.1.%d")); full != 1_000 {
			t.Errorf("an exempt network got %d full answers", full)
		}
		if full, _, _ := flood(func(int) net.Addr { return tcp("10.1.1.1") }); full != 1_000 {
			t.Errorf("over TCP the network got %d full answers", full)
		}
		time.Sleep(time.Second)
		if full, _, _ := flood(network("10.1.1.%d")); full != 10 {
			t.Errorf("%d full answers after a second, want 10", full)
		}
	})
}

// FuzzServe: whatever is queried, the answer is one, and of the zone.
func FuzzServe(f *testing.F) {
	app := "app." + origin
	s := serve(f, authoritative.Options{Resolvers: []netip.Prefix{resolver}}, append(base(f), published(pub(app, "ie", 1, "192.0.2.1"), pub("*."+origin, "de", 1, "192.0.2.2"))...))
	for _, q := range []*dns.Msg{question(app, dns.TypeA), question("x."+origin, dns.TypeAAAA), withSubnet(question(app, dns.TypeA), "10.1.0.0/16"),
		question(origin, dns.TypeAXFR), new(dns.Msg).SetNotify(origin), question(app, dns.TypeANY)} {
		f.Add(testutil.Packed(f, q))
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		q := new(dns.Msg)
		if q.Unpack(wire) != nil || len(q.Question) != 1 || q.Response {
			return
		}
		m := put(t, s, udp("192.0.2.200"), q)
		if m == nil {
			t.Fatal("no answer")
		}
		for _, rr := range m.Answer {
			if a, ok := rr.(*dns.A); ok && a.A.String() != "192.0.2.1" && a.A.String() != "192.0.2.2" && a.A.String() != "198.51.100.53" {
				t.Fatalf("%v", m)
			}
		}
	})
}
