package main

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A relay counts by what a message changes, and loses what it is told to: before the server has it, or the answer alone.
func TestRelay(t *testing.T) {
	var taken atomic.Int64
	l, pc := testutil.ListenBoth(t)
	pc.Close()
	server := &dns.Server{Listener: l, MsgAcceptFunc: func(dns.Header) dns.MsgAcceptAction { return dns.MsgAccept },
		Handler: dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
			taken.Add(1)
			answer := new(dns.Msg).SetReply(m)
			if len(m.Ns) > 0 && m.Ns[0].Header().Name == "busy.z." {
				answer.Rcode = dns.RcodeServerFailure
			}
			_ = w.WriteMsg(answer)
		})}
	ended := make(chan error, 1)
	go func() { ended <- server.ActivateAndServe() }()
	t.Cleanup(func() { _ = server.Shutdown(); <-ended })
	r, err := newRelay(l.Addr().(*net.TCPAddr).AddrPort(), "z.")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)

	update := func(names ...string) *dns.Msg {
		m := new(dns.Msg).SetUpdate("z.")
		for _, n := range names {
			m.Insert([]dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: n, Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{"x"}}})
		}
		return m
	}
	client := dns.Client{Net: "tcp", Timeout: 10 * time.Second}
	for _, c := range []struct {
		name     string
		faults   faults
		m        *dns.Msg
		counted  traffic
		answered bool
		taken    int64
	}{
		{"update of a busy server", faults{}, update("busy.z."), traffic{Updates: 1, Busy: 1}, true, 1},
		{"question", faults{}, new(dns.Msg).SetQuestion("z.", dns.TypeSOA), traffic{Reads: 1}, true, 1},
		{"update", faults{}, update("app.z."), traffic{Updates: 1}, true, 1},
		{"heartbeat", faults{}, update("aaaaaaaa._neardns.z."), traffic{Heartbeats: 1}, true, 1},
		{"heartbeat beside a change", faults{}, update("aaaaaaaa._neardns.z.", "app.z."), traffic{Updates: 1}, true, 1},
		{"shared", faults{}, update("_shared._neardns.z."), traffic{Updates: 1}, true, 1},
		{"delayed", faults{Delay: 10 * time.Millisecond}, update("app.z."), traffic{Updates: 1}, true, 1},
		{"lost before", faults{LoseBefore: 1}, update("app.z."), traffic{Updates: 1}, false, 0},
		{"lost after", faults{LoseAfter: 1}, update("app.z."), traffic{Updates: 1}, false, 1},
		{"reads are never lost", faults{LoseBefore: 1}, new(dns.Msg).SetQuestion("z.", dns.TypeSOA), traffic{Reads: 1}, true, 1},
		{"cut", faults{Cut: true}, update("app.z."), traffic{}, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.behave(c.faults)
			before, takenBefore := r.counted(), taken.Load()
			_, _, err := client.Exchange(c.m, r.addr())
			if (err == nil) != c.answered {
				t.Errorf("answered: %v", err)
			}
			testutil.Eventually(t, func() error {
				if got := taken.Load() - takenBefore; got != c.taken {
					return &net.AddrError{Err: "the server took another number of messages"}
				}
				return nil
			})
			if got := r.counted().minus(before); got != c.counted {
				t.Errorf("counted %+v", got)
			}
		})
	}
}
