package forward

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

// fake is a server with one port for both protocols. The test defines its answers.
type fake struct {
	t    testing.TB
	addr string
	host *host // in the network of the tests; nil: on loopback

	answer atomic.Pointer[func(q *dns.Msg, stream bool) *dns.Msg] // nil answer: silence
	asked  [2]atomic.Int64                                        // queries by protocol, without those that detect loops
	opened atomic.Int64                                           // streams accepted

	mu    sync.Mutex // guards conns
	conns map[net.Conn]bool
}

// A fake serves UDP, TCP or both.
const (
	onUDP  = 1
	onTCP  = 2
	onBoth = 3
)

// newFake is a server in the network of the tests.
func newFake(t testing.TB, on int, answer func(q *dns.Msg, stream bool) *dns.Msg) *fake {
	t.Helper()
	f := &fake{t: t, conns: map[net.Conn]bool{}, host: newHost(t)}
	f.addr = f.host.addr
	f.answer.Store(&answer)
	f.serve(on)
	return f
}

// newSocketFake is a server on loopback.
func newSocketFake(t testing.TB, answer func(q *dns.Msg, stream bool) *dns.Msg) *fake {
	t.Helper()
	f := &fake{t: t}
	f.answer.Store(&answer)
	f.addr = testutil.ServeBoth(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if m := f.reply(q, w.RemoteAddr().Network() == "tcp"); m != nil {
			_ = w.WriteMsg(m)
		}
	})
	return f
}

// serve makes the fake's host accept UDP, TCP, both or (0) none.
func (f *fake) serve(on int) {
	f.host.set(func() {
		f.host.datagram, f.host.accept = nil, nil
		if on&onUDP != 0 {
			f.host.datagram = f.datagram
		}
		if on&onTCP != 0 {
			f.host.accept = func(c *end) { f.serveStream(c) }
		}
	})
}

// stop ends the server as if its process was killed.
func (f *fake) stop() {
	f.serve(0)
	f.closeStreams()
}

func (f *fake) closeStreams() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		c.Close()
	}
	clear(f.conns)
}

func (f *fake) datagram(from *end, msg []byte) {
	q := new(dns.Msg)
	if q.Unpack(msg) != nil {
		return
	}
	f.host.running.Go(func() {
		if m := f.reply(q, false); m != nil {
			from.reply(m)
		}
	})
}

func (f *fake) behave(answer func(q *dns.Msg, stream bool) *dns.Msg) { f.answer.Store(&answer) }

func (f *fake) questions() int64 { return f.asked[0].Load() + f.asked[1].Load() }

func (f *fake) reply(q *dns.Msg, stream bool) *dns.Msg {
	if q.Question[0].Qtype != loopType {
		f.asked[index(stream)].Add(1)
	}
	return (*f.answer.Load())(q, stream)
}

func (f *fake) serveStream(c net.Conn) {
	f.opened.Add(1)
	f.mu.Lock()
	f.conns[c] = true
	f.mu.Unlock()
	defer c.Close()
	for co := (&dns.Conn{Conn: c}); ; {
		q, err := co.ReadMsg()
		if err != nil {
			return
		}
		if m := f.reply(q, true); m != nil {
			_ = co.WriteMsg(m)
		}
	}
}

// answersAs answers every query with a TXT that names the server.
func answersAs(who string) func(*dns.Msg, bool) *dns.Msg {
	return func(q *dns.Msg, _ bool) *dns.Msg {
		m := new(dns.Msg).SetReply(q)
		m.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 30}, Txt: []string{who}}}
		return m
	}
}

func silence(*dns.Msg, bool) *dns.Msg { return nil }

func code(rcode int) func(*dns.Msg, bool) *dns.Msg {
	return func(q *dns.Msg, _ bool) *dns.Msg { return new(dns.Msg).SetRcode(q, rcode) }
}

// after delays an answer; it is the server that takes its time, not the test.
func after(d time.Duration, then func(*dns.Msg, bool) *dns.Msg) func(*dns.Msg, bool) *dns.Msg {
	return func(q *dns.Msg, stream bool) *dns.Msg {
		<-time.After(d)
		return then(q, stream)
	}
}

// denies answers NXDOMAIN with the SOA of a zone.
func denies(zone string) func(*dns.Msg, bool) *dns.Msg {
	return func(q *dns.Msg, _ bool) *dns.Msg {
		m := new(dns.Msg).SetRcode(q, dns.RcodeNameError)
		m.Ns = []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: zone, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 30}, Ns: "ns.", Mbox: "m."}}
		return m
	}
}

// closedPort returns an address where nothing listens, so that the kernel refuses packets.
func closedPort(t testing.TB) string {
	t.Helper()
	return newHost(t).addr
}

// blackhole returns an address that accepts datagrams and answers none. Over TCP its queue is full, so connecting never ends.
func blackhole(t testing.TB) string {
	t.Helper()
	h := newHost(t)
	h.datagram, h.dropSYN = func(*end, []byte) {}, true
	return h.addr
}

// newServers is NewServers on the network of the tests.
func newServers(log *slog.Logger) *Servers {
	ss := NewServers(log)
	ss.connect = connectInMemory
	return ss
}

// block is a started Block with its log.
type block struct {
	*Block
	t   testing.TB
	log *testutil.Output
}

// serve starts a block that forwards to servers in the network of the tests; change sets the rest.
func serve(t testing.TB, change func(*Block), servers ...string) *block {
	t.Helper()
	return serveBy(t, connectInMemory, change, servers...)
}

// serveSockets is serve with the kernel's sockets.
func serveSockets(t testing.TB, servers ...string) *block {
	t.Helper()
	return serveBy(t, connectSocket, nil, servers...)
}

func serveBy(t testing.TB, by connect, change func(*Block), servers ...string) *block {
	t.Helper()
	log := new(testutil.Output)
	a := &Block{servers: NewServers(slog.New(slog.NewTextHandler(log, nil))), zones: []string{"."}, specs: specs(t, servers...)}
	a.servers.connect = by
	if change != nil {
		change(a)
	}
	a.start()
	t.Cleanup(a.stop)
	return &block{a, t, log}
}

func specs(t testing.TB, servers ...string) []spec {
	t.Helper()
	var out []spec
	for _, s := range servers {
		a, err := nameserver.Parse(s)
		testutil.Must(t, err)
		out = append(out, spec{Address: a})
	}
	return out
}

// ask sends a query as a client over "udp" or "tcp". It returns the answer as text, the server's name or the code, and the wait.
func (b *block) ask(network, name string) (string, time.Duration) {
	b.t.Helper()
	began := time.Now()
	got := b.answer(context.Background(), network, name)
	return got, time.Since(began)
}

// answer is the same without the wait.
func (b *block) answer(ctx context.Context, network, name string) string {
	b.t.Helper()
	m, rcode, err := b.exchange(ctx, &client{stream: network == "tcp"}, name)
	switch {
	case m == nil && err != nil:
		return dns.RcodeToString[rcode] + ": " + err.Error()
	case m == nil && rcode == dns.RcodeServerFailure:
		return "shed"
	case m == nil:
		b.t.Errorf("%s: neither an answer nor an error", name)
		return "neither an answer nor an error"
	case m.Truncated:
		return "truncated"
	case len(m.Answer) == 1:
		return m.Answer[0].(*dns.TXT).Txt[0]
	}
	return dns.RcodeToString[m.Rcode]
}

// exchange sends a client's query. Without an answer, m is nil.
func (b *block) exchange(ctx context.Context, c *client, name string) (m *dns.Msg, rcode int, err error) {
	b.t.Helper()
	q, rec := new(dns.Msg).SetQuestion(name, dns.TypeTXT), dnstest.NewRecorder(c)
	if rcode, err = b.ServeDNS(ctx, rec, q); rec.Msg != nil && rec.Msg.Id != q.Id {
		b.t.Errorf("%s: answered under another ID", name)
	}
	return rec.Msg, rcode, err
}

// want sends a query and checks which server answers, and the bounds of the wait.
func (b *block) want(network, name, who string, least, most time.Duration) {
	b.t.Helper()
	got, took := b.ask(network, name)
	if got != who || took < least || took > most {
		b.t.Errorf("%s over %s: %q after %s, want %q after %s to %s", name, network, got, took.Round(time.Millisecond), who, least, most)
	}
}

func (b *block) server(addr string) *server {
	b.t.Helper()
	for _, s := range b.list {
		if s.name == addr {
			return s
		}
	}
	b.t.Fatalf("%s is not asked", addr)
	return nil
}

func (s *server) isChecking() bool {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	return s.health.checking
}

// client is a client's ResponseWriter.
type client struct {
	test.ResponseWriter
	addr   netip.Addr // invalid: podAt(7)'s
	stream bool
}

func podAt(n byte) *client { return &client{addr: netip.AddrFrom4([4]byte{10, 244, 0, n})} }

func (c *client) RemoteAddr() net.Addr {
	ap := netip.AddrPortFrom(cmp.Or(c.addr, podAt(7).addr), 4000)
	if c.stream {
		return net.TCPAddrFromAddrPort(ap)
	}
	return net.UDPAddrFromAddrPort(ap)
}

// eventually lets virtual time pass until cond is true.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); ; <-time.After(5 * time.Millisecond) {
		synctest.Wait()
		if cond() {
			synctest.Wait() // until the goroutines that cond started are idle
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 15 s", what)
		}
	}
}

// datagrams starts a server over UDP at a loopback address.
func datagrams(t *testing.T, host string, each dns.HandlerFunc) (address string) {
	t.Helper()
	pc, err := net.ListenPacket("udp", net.JoinHostPort(host, "0"))
	testutil.Must(t, err)
	ready, ended := make(chan struct{}), make(chan error, 1)
	s := &dns.Server{PacketConn: pc, Handler: each, NotifyStartedFunc: func() { close(ready) }}
	go func() { ended <- s.ActivateAndServe() }()
	<-ready
	t.Cleanup(func() { testutil.Must(t, errors.Join(s.Shutdown(), <-ended)) })
	return pc.LocalAddr().String()
}
