package load

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

func TestCheck(t *testing.T) {
	good := func() Plan {
		return Plan{Duration: time.Second, Streams: []Stream{{
			Name: "s", Way: UDP, Server: netip.MustParseAddrPort("10.96.0.10:53"), Zone: "z", Label: "n", Rate: 1, Sockets: 1,
		}}}
	}
	testutil.Check(t, good().Check())
	for name, spoil := range map[string]func(*Plan){
		"public address": func(p *Plan) { p.Streams[0].Server = netip.MustParseAddrPort("192.0.2.1:53") },
		"no address":     func(p *Plan) { p.Streams[0].Server = netip.AddrPort{} },
		"no way":         func(p *Plan) { p.Streams[0].Way = "quic" },
		"rate":           func(p *Plan) { p.Streams[0].Rate = 1_000_000 },
		"no rate":        func(p *Plan) { p.Streams[0].Rate = 0 },
		"connections":    func(p *Plan) { p.Streams[0].Way, p.Streams[0].Rate = OneShot, 5000 },
		"many sockets":   func(p *Plan) { p.Streams[0].Way, p.Streams[0].Rate = Pair, 5000 },
		"sockets":        func(p *Plan) { p.Streams[0].Sockets = 1000 },
		"no socket":      func(p *Plan) { p.Streams[0].Sockets = 0 },
		"patience":       func(p *Plan) { p.Streams[0].Patience = time.Hour },
		"names":          func(p *Plan) { p.Streams[0].Names = -1 },
		"label":          func(p *Plan) { p.Streams[0].Label = "" },
		"endless":        func(p *Plan) { p.Duration = 0 },
		"long":           func(p *Plan) { p.Duration = time.Hour },
		"nothing":        func(p *Plan) { p.Streams = nil },
		"much":           func(p *Plan) { p.Streams = make([]Stream, 100) },
	} {
		p := good()
		spoil(&p)
		if err := p.Check(); err == nil {
			t.Errorf("%s: passes", name)
		}
	}
}

func TestNames(t *testing.T) {
	again, once := Stream{Label: "n", Zone: "z.test", Names: 3, First: 10}, Stream{Label: "n", Zone: "z.test", First: 10}
	for i, want := range []string{"n10", "n11", "n12", "n10"} {
		testutil.Equal(t, fmt.Sprint("query ", i), want+".z.test.", again.QName(i))
	}
	testutil.Equal(t, "a name once", "n13.z.test.", once.QName(3))
	s := Stream{Rate: 3}
	if s.Total(2*time.Second) != 6 || s.Due(3) != time.Second || s.Due(1) != time.Second/3 {
		t.Errorf("%d, %v, %v", s.Total(2*time.Second), s.Due(3), s.Due(1))
	}
}

// answer is what a scripted server gives as its n-th answer, for a client.
func answer(m *dns.Msg, n int, client string) *dns.Msg {
	r := new(dns.Msg).SetReply(m)
	r.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 3}, A: net.IPv4(198, 18, byte(n>>8), byte(n))}}
	r.Extra = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: whoName, Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{"KUBEDNS", strconv.Itoa(n), client}}}
	return r
}

func TestJudge(t *testing.T) {
	self := netip.MustParseAddr("10.244.1.2")
	const name = "n1.z."
	for what, c := range map[string]struct {
		change func(*dns.Msg)
		want   Outcome
	}{
		"from the cache":   {func(*dns.Msg) {}, Cache},
		"other case":       {func(m *dns.Msg) { m.Question[0].Name, m.Answer[0].Header().Name = "N1.z.", "n1.Z." }, Cache},
		"from kube-dns":    {func(m *dns.Msg) { m.Extra[0].(*dns.TXT).Txt[2] = self.String() }, Direct},
		"SERVFAIL":         {func(m *dns.Msg) { m.Rcode, m.Answer, m.Extra = dns.RcodeServerFailure, nil, nil }, Failed},
		"REFUSED":          {func(m *dns.Msg) { m.Rcode, m.Answer, m.Extra = dns.RcodeRefused, nil, nil }, Failed},
		"NXDOMAIN":         {func(m *dns.Msg) { m.Rcode, m.Answer = dns.RcodeNameError, nil }, Wrong},
		"empty":            {func(m *dns.Msg) { m.Answer = nil }, Wrong},
		"two records":      {func(m *dns.Msg) { m.Answer = append(m.Answer, m.Answer[0]) }, Wrong},
		"no answer at all": {func(m *dns.Msg) { m.Response = false }, Wrong},
		"other name":       {func(m *dns.Msg) { m.Question[0].Name = "n2.z." }, Wrong},
		"other type":       {func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAAAA }, Wrong},
		"record's name":    {func(m *dns.Msg) { m.Answer[0].Header().Name = "n2.z." }, Wrong},
		"mixed up":         {func(m *dns.Msg) { m.Answer[0].(*dns.A).A = net.IPv4(198, 18, 0, 8) }, Wrong},
		"other data":       {func(m *dns.Msg) { m.Answer[0].(*dns.A).A = net.IPv4(192, 0, 2, 7) }, Wrong},
		"nobody":           {func(m *dns.Msg) { m.Extra = nil }, Wrong},
	} {
		m := answer(new(dns.Msg).SetQuestion(name, dns.TypeA), 7, "192.0.2.10")
		c.change(m)
		wire, err := m.Pack()
		testutil.Must(t, err)
		if got, reason := judge(wire, name, dns.TypeA, self); got != c.want || (reason == "") != (got == Cache || got == Direct) {
			t.Errorf("%s: %c (%s), want %c", what, got, reason, c.want)
		}
	}
	if o, _ := judge([]byte("nonsense of some length"), name, dns.TypeA, self); o != Wrong {
		t.Errorf("nonsense is %c", o)
	}
}

// A stream whose server passes on no record of who answered has such answers as the node's, and no other ones.
func TestUnsigned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const name = "n1.z."
		l := newLedger(Stream{Rate: 1, Unsigned: true}, time.Now(), 3)
		for i, change := range []func(*dns.Msg){
			func(m *dns.Msg) { m.Extra = nil },
			func(m *dns.Msg) { m.Extra, m.Answer[0].(*dns.A).A = nil, net.IPv4(192, 0, 2, 7) },
			func(m *dns.Msg) { m.Extra, m.Question[0].Name = nil, "n2.z." },
		} {
			m := answer(new(dns.Msg).SetQuestion(name, dns.TypeA), 7, "192.0.2.10")
			change(m)
			wire, err := m.Pack()
			testutil.Must(t, err)
			l.send(i)
			o, reason := judge(wire, name, dns.TypeA, netip.MustParseAddr("10.244.1.2"))
			l.answer(i, o, reason)
		}
		testutil.Equal(t, "unsigned answers", "cww", l.book(0).Outcomes)
	})
}
