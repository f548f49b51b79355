package load

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCheck(t *testing.T) {
	good := func() Plan {
		return Plan{Duration: time.Second, Streams: []Stream{{
			Name: "s", Way: UDP, Server: netip.MustParseAddrPort("10.96.0.10:53"), Zone: "z", Label: "n", Rate: 1, Sockets: 1,
		}}}
	}
	if err := good().Check(); err != nil {
		t.Error(err)
	}
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
		if got := again.QName(i); got != want+".z.test." {
			t.Errorf("%d: %s", i, got)
		}
	}
	if got := once.QName(3); got != "n13.z.test." {
		t.Error(got)
	}
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
		if err != nil {
			t.Fatal(err)
		}
		if got, reason := judge(wire, name, dns.TypeA, self); got != c.want || (reason == "") != (got == Cache || got == Direct) {
			t.Errorf("%s: %c (%s), want %c", what, got, reason, c.want)
		}
	}
	if o, _ := judge([]byte("nonsense of some length"), name, dns.TypeA, self); o != Wrong {
		t.Errorf("nonsense is %c", o)
	}
}

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
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Generate(bytes.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	begun, rest, _ := strings.Cut(out.String(), "\n")
	var r Result
	if err := json.Unmarshal([]byte(rest), &r); err != nil || begun != Begun || len(r.Books) != 1 {
		t.Fatalf("%v in %q", err, out.String())
	}
	return r.Books[0]
}

// What is lost, refused or wrong never counts as answered, by any way.
func TestWays(t *testing.T) {
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

// A long-lived connection that is cut loses what is in flight on it and is opened anew; one that is silent is given up.
func TestLongReconnects(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.behave(func(w dns.ResponseWriter, m *dns.Msg, n int) {
		if n == 20 {
			_ = w.Close()
			return
		}
		_ = w.WriteMsg(answer(m, n, ""))
	})
	// A connection has 12 or 13 questions; how many are in flight when it is cut depends on what else the machine does.
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
	// One of four connections is silent for the patience of a second, 25 questions a second on it, then another takes over.
	sum := s.runFor(t, Long, 100, 4*half, time.Second).All()
	if sum.Lost < 15 || sum.Lost > 40 || sum.Cache != 200-sum.Lost || s.conns.Load() != 5 {
		t.Errorf("silent: %+v, %d connections", sum, s.conns.Load())
	}
}

func TestFlood(t *testing.T) {
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
	// A socket has room for some 270 questions: more are lost where the server does not come to read.
	if b.Sent != 500 || served < 100 || b.Answered > served || b.Answered < served/2 || b.Outcomes != "" {
		t.Errorf("%d sent, %d served, %d different names, %d answered", b.Sent, served, different, b.Answered)
	}
}

func TestGenerateRefuses(t *testing.T) {
	for name, in := range map[string]string{"nonsense": "{", "empty": "{}"} {
		if err := Generate(strings.NewReader(in), &bytes.Buffer{}); err == nil {
			t.Errorf("%s: passes", name)
		}
	}
	in := `{"Duration": 1000000, "Streams": [{"Name": "s", "Way": "tcplong", "Server": "127.0.0.1:1", "Zone": "z", "Label": "n", "Rate": 1000, "Sockets": 1}]}`
	var out bytes.Buffer
	if err := Generate(strings.NewReader(in), &out); err != nil { // nobody listens there: an outcome, no error
		t.Error(err)
	}
}
