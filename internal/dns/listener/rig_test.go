package listener

import (
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/queryinfo"
	"github.com/neardns/neardns/pkg/testutil"
)

// handler is a chain of one function.
type handler struct {
	do     func(dns.ResponseWriter, *dns.Msg)
	level  queryinfo.Level // of its answers
	first  fastpath.Handler
	closed atomic.Int64
	end    time.Duration // how long the end waits for a query on a connection
}

func (h *handler) ServeDNS(_ netip.AddrPort, w dns.ResponseWriter, r *dns.Msg, q *queryinfo.Query) {
	if len(r.Question) > 0 { // the library lets those without one through
		h.do(w, r)
		q.Found(h.level)
	}
}

func (h *handler) FastPath(netip.AddrPort) fastpath.Handler { return h.first }

func (h *handler) Close(bool) error {
	h.closed.Add(1)
	return nil
}

func (h *handler) build(Chain) (Chain, error) { return h, nil }

// answer gives every query the same address, and one for text 1,000 bytes.
func answer(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	head := dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 30}
	m.Answer = []dns.RR{&dns.A{Hdr: head, A: net.IPv4(10, 0, 0, 1)}}
	if part := strings.Repeat("a", 250); q.Question[0].Qtype == dns.TypeTXT {
		head.Rrtype = dns.TypeTXT
		m.Answer = []dns.RR{&dns.TXT{Hdr: head, Txt: []string{part, part, part, part}}}
	}
	_ = w.WriteMsg(m)
}

func configOf(t testing.TB) Config {
	t.Helper()
	return Config{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Port: testutil.FreePort(t), Misses: 1024, Connections: 1024}
}

// start serves by a function on 127.0.0.1.
func start(t testing.TB, do func(dns.ResponseWriter, *dns.Msg)) (*Server, Config) {
	t.Helper()
	return serve(t, nil, &handler{do: do})
}

func addressOf(cfg Config) string { return netip.AddrPortFrom(cfg.Addresses[0], cfg.Port).String() }

func question(name string, qtype uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, qtype) }

// write writes bytes to a socket.
func write(t testing.TB, conn net.Conn, b []byte) {
	t.Helper()
	_, err := conn.Write(b)
	testutil.Must(t, err)
}

// dial connects a client that waits for its answers without a deadline.
func dial(t testing.TB, network, server string) *dns.Conn {
	t.Helper()
	conn, err := net.Dial(network, server)
	testutil.Must(t, err)
	t.Cleanup(func() { conn.Close() })
	return &dns.Conn{Conn: conn, UDPSize: dns.MaxMsgSize}
}

// counted returns what a scrape shows, by name and reason.
func counted(t testing.TB, s *Server) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(s.Collector())
	families, err := reg.Gather()
	testutil.Must(t, err)
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "neardns_")
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			out[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}

func inWork(s *Server) int {
	packets, _ := s.quota.counts()
	return packets.taken
}

// boundPackets sets the number of slots for UDP queries, so that a test can fill them.
func (s *Server) boundPackets(most int) {
	s.quota.mu.Lock()
	defer s.quota.mu.Unlock()
	s.quota.packets.Resize(most)
}

// sources returns the number of clients with a slot for a UDP query.
func (s *Server) sources() int {
	s.quota.mu.Lock()
	defer s.quota.mu.Unlock()
	return s.quota.packets.Clients()
}

// piped returns how many TCP queries have a slot.
func (s *Server) piped() int {
	s.quota.mu.Lock()
	defer s.quota.mu.Unlock()
	return s.quota.piped.Used()
}

// noPlaces reports whether no connection and no TCP query has a slot.
func (s *Server) noPlaces() bool {
	_, conns := s.quota.counts()
	return s.piped() == 0 && conns.taken == 0
}

// stopping begins to stop a server, and returns when its connections are to end.
func stopping(t *testing.T, s *Server) (done chan error) {
	t.Helper()
	_, tcp := halves(t, s)
	done = make(chan error, 1)
	go func() { done <- s.Stop() }()
	testutil.WaitFor("connections end", func() bool {
		tcp.conns.mu.Lock()
		defer tcp.conns.mu.Unlock()
		return tcp.conns.draining
	})
	return done
}
