package bpf

import (
	"fmt"
	"testing"

	"github.com/miekg/dns"
)

// TestAnswers: the program's answers equal the fast path's, for each kind of answer, query and packet.
func TestAnswers(t *testing.T) {
	l := open(t, 64)
	long := "a-name-of-some-length-that-is-searched.in-a-namespace-of-some-length.svc.cluster.local.eu-west-1.compute.internal."
	answers := []struct {
		name  string
		qtype uint16
		a     Answer
	}{
		{"kubernetes.default.svc.cluster.local.", dns.TypeA, answerOf(t, "kubernetes.default.svc.cluster.local.", dns.TypeA, nil, "kubernetes.default.svc.cluster.local. 30 IN A 10.96.0.1")},
		{"kubernetes.default.svc.cluster.local.", dns.TypeAAAA, answerOf(t, "kubernetes.default.svc.cluster.local.", dns.TypeAAAA, nil, "kubernetes.default.svc.cluster.local. 30 IN AAAA fd00::1")},
		{"ab.example.", dns.TypeA, answerOf(t, "ab.example.", dns.TypeA, nil, "ab.example. 30 IN CNAME c.example.", "c.example. 30 IN A 192.0.2.1")},
		{"example.", dns.TypeTXT, answerOf(t, "example.", dns.TypeTXT, nil, `example. 30 IN TXT "x"`)},
		{".", dns.TypeNS, answerOf(t, ".", dns.TypeNS, nil, ". 30 IN NS a.root-servers.net.")},
		{long, dns.TypeA, answerOf(t, long, dns.TypeA, func(m *dns.Msg) { m.Rcode = dns.RcodeNameError }, "internal. 30 IN SOA ns.internal. root.internal. 1 2 3 4 5")},
		{"aa.example.", dns.TypeHTTPS, answerOf(t, "aa.example.", dns.TypeHTTPS, func(m *dns.Msg) { m.Authoritative, m.AuthenticatedData = true, true }, "example. 30 IN SOA ns.example. root.example. 1 2 3 4 5")},
	}
	for _, a := range answers {
		put(t, l, a.a)
	}
	for _, a := range answers {
		for i, change := range []func(*dns.Msg){nil, withOPT(1232), withOPT(0), withOPT(512), func(m *dns.Msg) { m.AuthenticatedData = true }, func(m *dns.Msg) {
			m.Question[0].Name = upper(m.Question[0].Name)
			m.SetEdns0(4096, false)
		}} {
			for _, v6 := range []bool{false, true} {
				for _, sum := range []checksum{partial, full, none} {
					if v6 && sum == none {
						continue
					}
					t.Run(fmt.Sprintf("%s %s %d v6=%t %d", a.name, dns.Type(a.qtype), i, v6, sum), func(t *testing.T) {
						wantAnswered(t, l, packet(v6, sum, ask(t, a.name, a.qtype, change)), a.a)
					})
				}
			}
		}
	}
}

// upper changes every second letter.
func upper(s string) string {
	b := []byte(s)
	for i := range b {
		if i%2 == 0 && 'a' <= b[i] && b[i] <= 'z' {
			b[i] -= 'a' - 'A'
		}
	}
	return string(b)
}
