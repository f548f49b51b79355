package server_test

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
)

// TestSlowNameIsNotKeptAsFailed has a name take its upstream longer than a question may take, once: who waits hears of it, and the
// client's next try, at once as glibc makes it, has the answer. A name of 2.4 s is answered at the first try.
func TestSlowNameIsNotKeptAsFailed(t *testing.T) {
	var asked atomic.Int64
	say := address("192.0.2.7")
	up := newUpstream(t, func(q *mdns.Msg) *mdns.Msg {
		switch q.Question[0].Name {
		case "slow.example.":
			<-time.After(2400 * time.Millisecond)
		case "slower.example.":
			if asked.Add(1) <= 4 { // all tries of the first question
				return nil
			}
		}
		return say(q)
	})
	cfg := config(t, up)
	start(t, cfg)
	const budget = 4500 * time.Millisecond
	client := &mdns.Client{Net: "udp", Timeout: time.Minute}
	var wg sync.WaitGroup
	var late time.Duration // of a timer of the same time: an answer may be as late
	begun := time.Now()
	wg.Go(func() {
		<-time.After(budget)
		late = time.Since(begun) - budget
	})
	wg.Go(func() { wantA(t, ask(t, "udp", addressOf(cfg), question("slow.example.", mdns.TypeA)), "192.0.2.7") })
	var told [2]time.Duration
	for i := range told { // a client's own second question waits for the first one's answer
		wg.Go(func() {
			m, _, err := client.Exchange(question("slower.example.", mdns.TypeA), addressOf(cfg))
			if told[i] = time.Since(begun); err != nil || m.Rcode != mdns.RcodeServerFailure {
				t.Errorf("%v, %v, want SERVFAIL", m, err)
			}
		})
	}
	wg.Wait()
	for _, after := range told {
		if after < budget-500*time.Millisecond || after > budget+500*time.Millisecond+late {
			t.Errorf("told after %s, want 4.5 s; a timer was %s late", after, late)
		}
	}
	asked.Store(4)
	m, took, err := client.Exchange(question("slower.example.", mdns.TypeA), addressOf(cfg))
	if err != nil || took > 3*time.Second { // not by another 4.5 s
		t.Fatalf("the next try: %v after %s", err, took)
	}
	wantA(t, m, "192.0.2.7")
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
