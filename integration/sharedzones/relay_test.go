package main

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

// A relay counts by what a message changes, and loses what it is instructed to: before the server has it, or the answer alone.
func TestRelay(t *testing.T) {
	const delay = time.Hour
	taken := make(chan struct{}, 100)
	var delayed atomic.Bool
	l, pc := testutil.ListenBoth(t)
	pc.Close()
	server := &dns.Server{Listener: l, MsgAcceptFunc: func(dns.Header) dns.MsgAcceptAction { return dns.MsgAccept },
		Handler: dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
			taken <- struct{}{}
			answer := new(dns.Msg).SetReply(m)
			if len(m.Ns) > 0 && m.Ns[0].Header().Name == "busy.z." {
				answer.Rcode = dns.RcodeServerFailure
			}
			_ = w.WriteMsg(answer)
		})}
	ended := make(chan error, 1)
	go func() { ended <- server.ActivateAndServe() }()
	t.Cleanup(func() { _ = server.Shutdown(); <-ended })
	r, err := newRelay(l.Addr().(*net.TCPAddr).AddrPort(), "z.", func(d time.Duration) { delayed.CompareAndSwap(false, d == delay) })
	testutil.Must(t, err)
	defer r.close() // may be called again

	update := func(names ...string) *dns.Msg {
		m := new(dns.Msg).SetUpdate("z.")
		for _, n := range names {
			m.Insert([]dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: n, Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{"x"}}})
		}
		return m
	}
	client := dns.Client{Net: "tcp", Timeout: time.Hour} // the test's own end is the only bound
	for _, c := range []struct {
		name     string
		faults   faults
		m        *dns.Msg
		counted  traffic
		answered bool
		taken    int
	}{
		{"update of a busy server", faults{}, update("busy.z."), traffic{Updates: 1, Busy: 1}, true, 1},
		{"question", faults{}, new(dns.Msg).SetQuestion("z.", dns.TypeSOA), traffic{Reads: 1}, true, 1},
		{"update", faults{}, update("app.z."), traffic{Updates: 1}, true, 1},
		{"heartbeat", faults{}, update("aaaaaaaa._neardns.z."), traffic{Heartbeats: 1}, true, 1},
		{"heartbeat beside a change", faults{}, update("aaaaaaaa._neardns.z.", "app.z."), traffic{Updates: 1}, true, 1},
		{"shared", faults{}, update("_shared._neardns.z."), traffic{Updates: 1}, true, 1},
		{"delayed", faults{Delay: delay}, update("app.z."), traffic{Updates: 1}, true, 1},
		{"lost before", faults{LoseBefore: 1}, update("app.z."), traffic{Updates: 1}, false, 0},
		{"lost after", faults{LoseAfter: 1}, update("app.z."), traffic{Updates: 1}, false, 1},
		{"reads are never lost", faults{LoseBefore: 1}, new(dns.Msg).SetQuestion("z.", dns.TypeSOA), traffic{Reads: 1}, true, 1},
		{"cut", faults{Cut: true}, update("app.z."), traffic{}, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.behave(c.faults)
			before := r.counted()
			_, _, err := client.Exchange(c.m, r.addr())
			if (err == nil) != c.answered {
				t.Errorf("answered: %v", err)
			}
			for range c.taken {
				<-taken
			}
			if got := r.counted().minus(before); got != c.counted {
				t.Errorf("counted %+v", got)
			}
		})
	}
	r.close()
	if len(taken) > 0 {
		t.Errorf("the server took %d messages more", len(taken))
	}
	if !delayed.Load() {
		t.Error("no message was delayed")
	}
}
