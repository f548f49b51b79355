package forward

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/testutil"
)

// After SYNs were dropped, and after a second in which TCP was refused, an answer that does not fit a datagram comes whole within a second
// to clients over UDP and TCP.
func TestWholeAfterAFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		func(t testing.TB) {
			f := newFake(t, onBoth, head)
			f.host.set(func() { f.host.dropSYN = true })
			b := serve(t, tcp, f.addr)
			time.AfterFunc(500*time.Millisecond, func() { f.host.set(func() { f.host.dropSYN = false }) })
			b.want("tcp", "first.example.", "whole", 0, budget) // by the next SYN
			for _, network := range []string{"udp", "tcp"} {
				b.want(network, network+".example.", "whole", 0, time.Second)
			}
			if b.list[0].prefersDatagrams(time.Now()) {
				t.Errorf("TCP is not tried first:\n%s", b.log)
			}
		}(named{t, "SYNs dropped"})
		func(t testing.TB) {
			f := newFake(t, onUDP, head)
			b := serve(t, tcp, f.addr)
			for until := time.Now().Add(time.Second); time.Now().Before(until); <-time.After(20 * time.Millisecond) {
				b.want("udp", "a.example.", "truncated", 0, time.Second)
			}
			f.serve(onBoth)
			for _, network := range []string{"udp", "tcp"} {
				b.want(network, network+".example.", "whole", 0, time.Second)
			}
		}(named{t, "TCP refused for a second"})
	})
}

// TestPrefersDatagrams: datagrams are tried first after several failed streams in a row, for ten seconds or until a stream works.
func TestPrefersDatagrams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(testutil.Output)
		s := newServers(slog.New(slog.NewTextHandler(log, nil))).acquire(spec{Address: nameserver.At(netip.MustParseAddr("192.0.2.1"))})
		fail := func(times int) {
			for range times {
				s.streamFailed(time.Now(), errNoStream)
			}
		}
		want := func(when string, want bool) {
			t.Helper()
			testutil.Equal(t, when+": a stream first", want, s.streamFirst(time.Now()))
		}
		fail(streamFails - 1)
		s.streamWorks()
		fail(streamFails - 1)
		want("a success between", true)
		fail(1)
		want("three in a row", false)
		<-time.After(datagramsFor)
		want("its time is over", true)
		want("the others while one tries", false)
		fail(1)
		<-time.After(streamTurn)
		want("it failed again", false)
		s.streamWorks()
		want("one has worked", true)
		if n := strings.Count(log.String(), "\n"); n != 2 {
			t.Errorf("%d lines:\n%s", n, log)
		}
	})
}

// Without a cache in front, the options of a client's query are not forwarded either.
func TestNoClientsOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []string
		f := newFake(t, onUDP, func(q *dns.Msg, stream bool) *dns.Msg {
			if o := q.IsEdns0(); o != nil && q.Question[0].Qtype == dns.TypeTXT {
				seen = append(seen, fmt.Sprintf("%d options, size %d, DO %v", len(o.Option), o.UDPSize(), o.Do()))
			}
			return answersAs("upstream")(q, stream)
		})
		b := serve(t, nil, f.addr)
		q := new(dns.Msg).SetQuestion("a.example.", dns.TypeTXT).SetEdns0(1400, true)
		o := q.IsEdns0()
		o.Option = append(o.Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"}, &dns.EDNS0_LOCAL{Code: 65001, Data: []byte("x")})
		_, err := b.ServeDNS(t.Context(), &client{}, q)
		testutil.Must(t, err)
		if len(q.IsEdns0().Option) != 2 {
			t.Error("the client's own question was changed")
		}
		_, err = b.ServeDNS(t.Context(), &client{}, new(dns.Msg).SetQuestion("b.example.", dns.TypeTXT).SetEdns0(65535, false))
		testutil.Must(t, err)
		testutil.Equal(t, "the upstream sees", []string{"0 options, size 1400, DO true", "0 options, size 4096, DO false"}, seen)
	})
}

// A waiting query has a small buffer even if the client accepts large answers. Otherwise a pod's share of the misses would take more memory
// than the agent may have.
func TestWaitingHoldsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiting = 256
		f := newFake(t, onUDP, silence)
		b := serve(t, nil, f.addr)
		before := testutil.Heap()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range waiting {
			wg.Go(func() {
				_, _ = b.ServeDNS(ctx, &client{}, new(dns.Msg).SetQuestion(fmt.Sprintf("n%d.example.", i), dns.TypeTXT).SetEdns0(65535, false))
			})
		}
		eventually(t, "all have been asked", func() bool { return f.asked[0].Load() >= waiting })
		each := (testutil.Heap() - before) / waiting
		cancel()
		wg.Wait()
		if each > 40<<10 {
			t.Errorf("a question that waits holds %d bytes", each)
		}
	})
}
