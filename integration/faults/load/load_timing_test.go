//go:build timing

package load

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// What the load counts, next to a scripted server: each run sends queries at a rate for half a second.

// server is a scripted server on loopback.
type server struct {
	at     netip.AddrPort
	mu     sync.Mutex // guards the field below
	reply  func(w dns.ResponseWriter, m *dns.Msg, n int)
	served atomic.Int64
	conns  atomic.Int64
}

func (s *server) ServeDNS(w dns.ResponseWriter, m *dns.Msg) {
	n := int(s.served.Add(1))
	s.mu.Lock()
	reply := s.reply
	s.mu.Unlock()
	if reply == nil {
		_ = w.WriteMsg(answer(m, n, "192.0.2.10"))
		return
	}
	reply(w, m, n)
}

func (s *server) behave(reply func(w dns.ResponseWriter, m *dns.Msg, n int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reply = reply
}

// Accept counts connections.
type counted struct {
	net.Listener
	n *atomic.Int64
}

func (c counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.n.Add(1)
	}
	return conn, err
}

func serve(t *testing.T) *server {
	t.Helper()
	s := &server{}
	l, pc := testutil.ListenBoth(t)
	s.at = netip.MustParseAddrPort(l.Addr().String())
	for _, d := range []*dns.Server{{Listener: counted{l, &s.conns}, Handler: s, MaxTCPQueries: -1}, {PacketConn: pc, Handler: s}} {
		ready := make(chan struct{})
		d.NotifyStartedFunc = func() { close(ready) }
		done := make(chan error, 1)
		go func() { done <- d.ActivateAndServe() }()
		<-ready
		t.Cleanup(func() { _ = d.Shutdown(); <-done })
	}
	return s
}

// half is the duration of a run that is over when its answers are.
const half = 500 * time.Millisecond

// run carries out one stream as its process does, and returns the book. Its patience outlasts what other processes do to a machine.
func (s *server) run(t *testing.T, way Way, rate int) *Book {
	t.Helper()
	return s.runFor(t, way, rate, half, maxPatience)
}

func (s *server) runFor(t *testing.T, way Way, rate int, d, patience time.Duration) *Book {
	t.Helper()
	in, err := json.Marshal(Plan{Duration: d, Streams: []Stream{{
		Name: "s", Way: way, Server: s.at, Zone: "z.test", Label: "n", Names: 5, Rate: rate, Sockets: 4, Patience: patience,
	}}})
	testutil.Must(t, err)
	var out bytes.Buffer
	testutil.Must(t, Generate(bytes.NewReader(in), &out))
	begun, rest, _ := strings.Cut(out.String(), "\n")
	var r Result
	if err := json.Unmarshal([]byte(rest), &r); err != nil || begun != Begun || len(r.Books) != 1 {
		t.Fatalf("%v in %q", err, out.String())
	}
	return r.Books[0]
}

// What is lost, refused or wrong never counts as answered: over UDP, by a connection for each query, and by long-lived ones.
//
// State: TestJudge, TestJudgeOfAnAAAA, TestCheck, TestNames. Bound: TestPace, TestLedger.
func TestTimingWays(t *testing.T) {
	t.Parallel()
	for _, way := range []Way{UDP, OneShot, Long} {
		t.Run(string(way), func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			const n = 50
			if sum := s.run(t, way, 2*n).All(); sum.Cache != n || sum.Missed() != 0 || s.served.Load() != n || sum.P50 <= 0 {
				t.Errorf("good: %+v", sum)
			}
			if conns, want := s.conns.Load(), map[Way]int64{OneShot: n, Long: 4}[way]; conns != want {
				t.Errorf("%d connections, want %d", conns, want)
			}
			s.behave(func(w dns.ResponseWriter, m *dns.Msg, n int) {
				client, _, _ := net.SplitHostPort(w.RemoteAddr().String())
				_ = w.WriteMsg(answer(m, n, client))
			})
			if sum := s.run(t, way, 2*n).All(); sum.Direct != n {
				t.Errorf("direct: %+v", sum)
			}
			s.behave(func(w dns.ResponseWriter, m *dns.Msg, _ int) {
				_ = w.WriteMsg(new(dns.Msg).SetRcode(m, dns.RcodeServerFailure))
			})
			if b := s.run(t, way, 2*n); b.All().Failed != n || b.Reasons["SERVFAIL"] != n {
				t.Errorf("SERVFAIL: %+v, %v", b.All(), b.Reasons)
			}
			s.behave(func(w dns.ResponseWriter, m *dns.Msg, n int) {
				m.Question[0].Name = "other.test."
				_ = w.WriteMsg(answer(m, n, ""))
			})
			if sum := s.run(t, way, 2*n).All(); sum.Wrong != n {
				t.Errorf("wrong: %+v", sum)
			}
			s.behave(func(dns.ResponseWriter, *dns.Msg, int) {})
			if sum := s.runFor(t, way, 2*n, half, 300*time.Millisecond).All(); sum.Lost != n || sum.Max != 0 {
				t.Errorf("lost: %+v", sum)
			}
		})
	}
}

// A long-lived connection that is cut loses what is in flight on it and is reopened; one that is silent is given up.
//
// State: TestJudge, TestJudgeOfAnAAAA, TestCheck, TestNames. Bound: TestPace, TestLedger.
func TestTimingLongReconnects(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.behave(func(w dns.ResponseWriter, m *dns.Msg, n int) {
		if n == 20 {
			_ = w.Close()
			return
		}
		_ = w.WriteMsg(answer(m, n, ""))
	})
	// A connection has 12 or 13 queries; how many are in flight when it is cut depends on what else the machine does.
	if sum := s.runFor(t, Long, 100, half, 3*time.Second).All(); sum.Lost == 0 || sum.Lost > 13 || sum.Cache != 50-sum.Lost || s.conns.Load() != 5 {
		t.Errorf("cut: %+v, %d connections", sum, s.conns.Load())
	}
	s.conns.Store(0)
	s.served.Store(0)
	silent := ""
	s.behave(func(w dns.ResponseWriter, m *dns.Msg, n int) {
		if n == 1 {
			silent = w.RemoteAddr().String()
		}
		if w.RemoteAddr().String() != silent {
			_ = w.WriteMsg(answer(m, n, ""))
		}
	})
	// One of four connections is silent for the patience of a second, 25 queries per second on it, then another takes over.
	sum := s.runFor(t, Long, 100, 4*half, time.Second).All()
	if sum.Lost < 15 || sum.Lost > 40 || sum.Cache != 200-sum.Lost || s.conns.Load() != 5 {
		t.Errorf("silent: %+v, %d connections", sum, s.conns.Load())
	}
}

// State: TestJudge, TestJudgeOfAnAAAA, TestCheck, TestNames. Bound: TestPace, TestLedger.
func TestTimingFlood(t *testing.T) {
	t.Parallel()
	s := serve(t)
	names := sync.Map{}
	s.behave(func(w dns.ResponseWriter, m *dns.Msg, n int) {
		names.Store(m.Question[0].Name, true)
		_ = w.WriteMsg(answer(m, n, ""))
	})
	b := s.run(t, Flood, 1000)
	served, different := 0, 0
	testutil.Eventually(t, func() error { // some may still be on their way
		served, different = int(s.served.Load()), 0
		names.Range(func(any, any) bool { different++; return true })
		if different != served {
			return fmt.Errorf("%d served, %d different names", served, different)
		}
		return nil
	})
	// A socket has room for some 270 queries: more are lost where the server does not come to read.
	if b.Sent != 500 || served < 100 || b.Answered > served || b.Answered < served/2 || b.Outcomes != "" {
		t.Errorf("%d sent, %d served, %d different names, %d answered", b.Sent, served, different, b.Answered)
	}
}

// State: TestJudge, TestJudgeOfAnAAAA, TestCheck, TestNames. Bound: TestPace, TestLedger.
func TestTimingGenerateRefuses(t *testing.T) {
	for name, in := range map[string]string{"nonsense": "{", "empty": "{}"} {
		if err := Generate(strings.NewReader(in), &bytes.Buffer{}); err == nil {
			t.Errorf("%s: passes", name)
		}
	}
	in := `{"Duration": 1000000, "Streams": [{"Name": "s", "Way": "tcplong", "Server": "127.0.0.1:1", "Zone": "z", "Label": "n", "Rate": 1000, "Sockets": 1}]}`
	var out bytes.Buffer
	if err := Generate(strings.NewReader(in), &out); err != nil { // no program listens there: an outcome, no error
		t.Error(err)
	}
}

// A lookup is as good as the worse of its answers, and both come from one port.
//
// State: TestJudge, TestJudgeOfAnAAAA, TestCheck, TestNames. Bound: TestPace, TestLedger.
func TestTimingPair(t *testing.T) {
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
