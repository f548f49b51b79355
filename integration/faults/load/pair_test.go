package load

import (
	"net"
	"net/netip"
	"strconv"
	"testing"

	"github.com/miekg/dns"
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

// A lookup is as good as the worse of its answers, and both come from one port.
func TestPair(t *testing.T) {
	t.Parallel()
	const n = 50
	s := serve(t)
	for _, c := range []struct {
		name  string
		reply func(w dns.ResponseWriter, m *dns.Msg, n int)
		got   func(Sum) int
	}{
		{"good", func(w dns.ResponseWriter, m *dns.Msg, n int) { _ = w.WriteMsg(pairAnswer(m, n, "192.0.2.10")) }, func(s Sum) int { return s.Cache }},
		{"one from kube-dns", func(w dns.ResponseWriter, m *dns.Msg, n int) {
			client := "192.0.2.10"
			if m.Question[0].Qtype == dns.TypeAAAA {
				client, _, _ = net.SplitHostPort(w.RemoteAddr().String())
			}
			_ = w.WriteMsg(pairAnswer(m, n, client))
		}, func(s Sum) int { return s.Direct }},
		{"one without an answer", func(w dns.ResponseWriter, m *dns.Msg, n int) {
			if m.Question[0].Qtype == dns.TypeA {
				_ = w.WriteMsg(pairAnswer(m, n, "192.0.2.10"))
			}
		}, func(s Sum) int { return s.Lost }},
		{"one of another type", func(w dns.ResponseWriter, m *dns.Msg, n int) { _ = w.WriteMsg(answer(m, n, "192.0.2.10")) }, func(s Sum) int { return s.Wrong }},
		{"one refused", func(w dns.ResponseWriter, m *dns.Msg, n int) {
			r := pairAnswer(m, n, "192.0.2.10")
			if m.Question[0].Qtype == dns.TypeA {
				r = new(dns.Msg).SetRcode(m, dns.RcodeRefused)
			}
			_ = w.WriteMsg(r)
		}, func(s Sum) int { return s.Failed }},
	} {
		s.behave(c.reply)
		patience := maxPatience
		if c.name == "one without an answer" {
			patience = half
		}
		if sum := s.runFor(t, Pair, 2*n, half, patience).All(); c.got(sum) != n || sum.Sent != n {
			t.Errorf("%s: %+v", c.name, sum)
		}
	}
	ports := map[string]int{}
	s.behave(func(w dns.ResponseWriter, m *dns.Msg, n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		ports[w.RemoteAddr().String()]++
		_ = w.WriteMsg(pairAnswer(m, n, "192.0.2.10"))
	})
	if sum := s.run(t, Pair, 2*n).All(); sum.Cache != n {
		t.Errorf("ports: %+v", sum)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, questions := range ports {
		if questions%2 != 0 {
			t.Errorf("%d questions from %s, want both of each lookup", questions, at)
		}
	}
	if len(ports) < n*9/10 { // a port may come again
		t.Errorf("%d lookups from %d ports", n, len(ports))
	}
}

// The other half's data is held against its number as well.
func TestJudgeOfAnAAAA(t *testing.T) {
	self := netip.MustParseAddr("10.244.1.2")
	m := pairAnswer(new(dns.Msg).SetQuestion("n1.z.", dns.TypeAAAA), 513, "192.0.2.10")
	wire, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	if o, reason := judge(wire, "n1.z.", dns.TypeAAAA, self); o != Cache {
		t.Errorf("%c %s", o, reason)
	}
	m.Extra[0].(*dns.TXT).Txt[1] = strconv.Itoa(512)
	if wire, err = m.Pack(); err != nil {
		t.Fatal(err)
	}
	if o, _ := judge(wire, "n1.z.", dns.TypeAAAA, self); o != Wrong {
		t.Errorf("mixed up, but %c", o)
	}
}
