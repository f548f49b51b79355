package probe

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// from is a response writer whose client is addr.
type from struct {
	test.ResponseWriter
	addr net.Addr
}

func (f *from) RemoteAddr() net.Addr { return f.addr }

func TestProbe(t *testing.T) {
	p := &Probe{Instance: "node-a.1", Sources: []netip.Addr{netip.MustParseAddr("169.254.20.250"), netip.MustParseAddr("fd00:90de:d95::fa")}}
	udp := func(a string) net.Addr {
		return net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(a), 4000))
	}
	tcp := func(a string) net.Addr {
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(a), 4000))
	}
	for _, tc := range []struct {
		name   string
		client net.Addr
		qname  string
		qtype  uint16
		want   bool
	}{
		{"probe source, IPv4, udp", udp("169.254.20.250"), "abc.probe.neardns.invalid.", dns.TypeTXT, true},
		{"probe source, IPv4, tcp", tcp("169.254.20.250"), "abc.probe.neardns.invalid.", dns.TypeTXT, true},
		{"probe source, IPv6", udp("fd00:90de:d95::fa"), "abc.probe.neardns.invalid.", dns.TypeTXT, true},
		{"mapped IPv4", udp("::ffff:169.254.20.250"), "abc.probe.neardns.invalid.", dns.TypeTXT, true},
		{"loopback", udp("127.0.0.1"), "abc.probe.neardns.invalid.", dns.TypeTXT, true},
		{"case is kept", udp("::1"), "aBc.Probe.NEARDNS.invalid.", dns.TypeTXT, true},
		{"a pod", udp("10.244.1.7"), "abc.probe.neardns.invalid.", dns.TypeTXT, false},
		{"the proof source", udp("169.254.20.251"), "abc.probe.neardns.invalid.", dns.TypeTXT, false},
		{"unix client", &net.UnixAddr{Name: "x"}, "abc.probe.neardns.invalid.", dns.TypeTXT, false},
		{"other type", udp("127.0.0.1"), "abc.probe.neardns.invalid.", dns.TypeA, false},
		{"no nonce", udp("127.0.0.1"), "probe.neardns.invalid.", dns.TypeTXT, false},
		{"two labels", udp("127.0.0.1"), "a.b.probe.neardns.invalid.", dns.TypeTXT, false},
		{"name that only ends alike", udp("127.0.0.1"), "xprobe.neardns.invalid.", dns.TypeTXT, false},
		{"other zone", udp("127.0.0.1"), "abc.example.org.", dns.TypeTXT, false},
		{"root", udp("127.0.0.1"), ".", dns.TypeTXT, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := dnstest.NewRecorder(&from{addr: tc.client})
			_, err := p.ServeDNS(context.Background(), rec, new(dns.Msg).SetQuestion(tc.qname, tc.qtype))
			testutil.Must(t, err)
			if !tc.want {
				if rec.Msg.Rcode != dns.RcodeNameError || len(rec.Msg.Answer) != 0 {
					t.Fatalf("want NXDOMAIN without answer, got %v", rec.Msg)
				}
				return
			}
			if len(rec.Msg.Answer) != 1 {
				t.Fatalf("want one record, got %v", rec.Msg)
			}
			txt, ok := rec.Msg.Answer[0].(*dns.TXT)
			if !ok || len(txt.Txt) != 1 || txt.Txt[0] != "node-a.1" || txt.Hdr.Ttl != 0 || txt.Hdr.Name != tc.qname {
				t.Fatalf("wrong record: %v", rec.Msg.Answer[0])
			}
		})
	}
}
