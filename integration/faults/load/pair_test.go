package load

import (
	"net"
	"net/netip"
	"strconv"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// pairAnswer is what a scripted server gives for either type.
func pairAnswer(m *dns.Msg, n int, client string) *dns.Msg {
	r := answer(m, n, client)
	if m.Question[0].Qtype == dns.TypeAAAA {
		ip := net.ParseIP("2001:db8:1818::")
		ip[14], ip[15] = byte(n>>8), byte(n)
		r.Answer = []dns.RR{&dns.AAAA{Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeAAAA, Class: dns.ClassINET, Ttl: 3}, AAAA: ip}}
	}
	return r
}

// The other half's data is held against its number as well.
func TestJudgeOfAnAAAA(t *testing.T) {
	self := netip.MustParseAddr("10.244.1.2")
	m := pairAnswer(new(dns.Msg).SetQuestion("n1.z.", dns.TypeAAAA), 513, "192.0.2.10")
	wire, err := m.Pack()
	testutil.Must(t, err)
	if o, reason := judge(wire, "n1.z.", dns.TypeAAAA, self); o != Cache {
		t.Errorf("%c %s", o, reason)
	}
	m.Extra[0].(*dns.TXT).Txt[1] = strconv.Itoa(512)
	wire, err = m.Pack()
	testutil.Must(t, err)
	if o, _ := judge(wire, "n1.z.", dns.TypeAAAA, self); o != Wrong {
		t.Errorf("mixed up, but %c", o)
	}
}
