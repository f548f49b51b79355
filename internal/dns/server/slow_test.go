package server_test

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"

	mdns "github.com/miekg/dns"
)

// TestSlowNameIsNotKeptAsFailed: if the upstream does not answer a name in time, the client has SERVFAIL, and its next try, at once as
// glibc makes it, has the answer. A client's own second query waits for the first one's answer.
func TestSlowNameIsNotKeptAsFailed(t *testing.T) {
	var answers atomic.Bool
	say := address("192.0.2.7")
	up := newUpstream(t, func(q *mdns.Msg) *mdns.Msg {
		if q.Question[0].Name == "slower.example." && !answers.Load() {
			return nil
		}
		return say(q)
	})
	cfg := config(t, up)
	start(t, cfg)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if m := ask(t, "udp", addressOf(cfg), question("slower.example.", mdns.TypeA)); m.Rcode != mdns.RcodeServerFailure {
				t.Errorf("%v, want SERVFAIL", m)
			}
		})
	}
	wg.Wait()
	answers.Store(true)
	wantA(t, ask(t, "udp", addressOf(cfg), question("slower.example.", mdns.TypeA)), "192.0.2.7")
}

// TestOtherClasses asks for what is not of the class IN: kube-dns's own CoreDNS passes it on, and so do we.
func TestOtherClasses(t *testing.T) {
	up := newUpstream(t, func(q *mdns.Msg) *mdns.Msg {
		m := new(mdns.Msg).SetReply(q)
		if h := q.Question[0]; h.Qclass == mdns.ClassCHAOS {
			m.Answer = []mdns.RR{&mdns.TXT{Hdr: mdns.RR_Header{Name: h.Name, Rrtype: mdns.TypeTXT, Class: h.Qclass}, Txt: []string{"upstream"}}}
		} else {
			m.Answer = []mdns.RR{&mdns.A{Hdr: mdns.RR_Header{Name: h.Name, Rrtype: mdns.TypeA, Class: mdns.ClassINET, Ttl: 30}, A: net.IPv4(192, 0, 2, 7)}}
		}
		return m
	})
	cfg := config(t, up)
	start(t, cfg)
	q := question("version.bind.", mdns.TypeTXT)
	q.Question[0].Qclass = mdns.ClassCHAOS
	if m := ask(t, "udp", addressOf(cfg), q); m.Rcode != mdns.RcodeSuccess || len(m.Answer) != 1 {
		t.Errorf("class CH: %v", m)
	}
	q = question("www.example.", mdns.TypeA)
	q.Question[0].Qclass = mdns.ClassANY
	if m := ask(t, "udp", addressOf(cfg), q); m.Rcode != mdns.RcodeSuccess || len(m.Answer) != 1 {
		t.Errorf("class ANY: %v", m)
	}
}
