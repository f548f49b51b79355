package listener

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/queryinfo"
	"github.com/neardns/neardns/pkg/testutil"
)

// strange returns messages with unusual headers and sections, valid and invalid ones.
func strange(t testing.TB) (out [][]byte) {
	t.Helper()
	for opcode := range 16 {
		for _, change := range []func(m *dns.Msg){
			func(*dns.Msg) {},
			func(m *dns.Msg) { m.Response = true },
			func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) },
			func(m *dns.Msg) { m.Question = nil },
			func(m *dns.Msg) {
				m.Zero, m.CheckingDisabled, m.AuthenticatedData, m.Authoritative, m.Rcode = true, true, true, true, 9
			},
			func(m *dns.Msg) {
				m.Answer = []dns.RR{&dns.NS{Hdr: dns.RR_Header{Name: ".", Rrtype: 2, Class: 1}, Ns: "."}}
			},
			func(m *dns.Msg) { m.SetEdns0(1232, true); m.Extra = append(m.Extra, m.Extra[0], m.Extra[0]) },
		} {
			m := question("X.example.org.", dns.TypeA)
			m.Opcode = opcode
			change(m)
			b := testutil.Packed(t, m)
			for _, cut := range []int{0, 1, 5, 8, 13, 18} {
				out = append(out, b[:max(len(b)-cut, 0)])
			}
		}
	}
	plain := testutil.Packed(t, question("x.example.org.", dns.TypeA))
	for _, tail := range []string{"\xc0\x0c\x00\x01\x00\x01", "\x01a\xc0\x04\x00\x01\x00\x01", "\x80\x00\x01\x00\x01", "\x3fabc", strings.Repeat("\x01a", 200)} {
		out = append(out, append(plain[:12:12], tail...))
	}
	long := question("x.example.org.", dns.TypeA)
	long.SetEdns0(1232, false)
	long.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_PADDING{Padding: make([]byte, 600)}}
	b := testutil.Packed(t, long)
	return append(out, b, b[:511], b[:512], b[:513])
}

func dialUDP(t testing.TB, at string) net.Conn {
	t.Helper()
	conn, err := net.Dial("udp", at)
	testutil.Must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// echo answers each query at once.
type echo struct{}

func (echo) Answer(b []byte, q *fastpath.Query) ([]byte, queryinfo.Level, bool) {
	head := len(b)
	b = append(b, q.Wire...)
	b[head+2] |= 0x80
	return b, queryinfo.Hit, true
}

// TestBatches sends bursts that are larger than a batch, each query with a name of its own. Each sender gets its own answers. The chain
// answers every third query, the fast path the others.
func TestBatches(t *testing.T) {
	first := &some{}
	_, cfg := serve(t, nil, &handler{do: answer, first: first})
	var wg sync.WaitGroup
	for sender := range 4 {
		wg.Go(func() {
			conn, err := net.Dial("udp", addressOf(cfg))
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			for round := range 20 {
				open := map[uint16]string{}
				for i := range 3*batchSize + 1 {
					q := question(fmt.Sprintf("s%d-r%d-q%d.example.org.", sender, round, i), dns.TypeA)
					q.Id = uint16(i)
					open[q.Id] = q.Question[0].Name
					b, _ := q.Pack()
					if _, err := conn.Write(b); err != nil {
						t.Error(err)
						return
					}
				}
				for buffer := make([]byte, 512); len(open) > 0; {
					n, err := conn.Read(buffer)
					var m dns.Msg
					if err == nil {
						err = m.Unpack(buffer[:n])
					}
					if err != nil || m.Question[0].Name != open[m.Id] {
						t.Errorf("an answer that nobody asked for: %v, %v; open are %d", m.Question, err, len(open))
						return
					}
					delete(open, m.Id)
				}
			}
		})
	}
	wg.Wait()
}

// some answers two of three queries.
type some struct{ echo }

func (s *some) Answer(b []byte, q *fastpath.Query) ([]byte, queryinfo.Level, bool) {
	if (int(q.Wire[0])<<8|int(q.Wire[1]))%3 == 0 {
		return b, queryinfo.Miss, false
	}
	return s.echo.Answer(b, q)
}

// TestBrokenFirst: if the fast path panics, the chain answers, and the process continues.
func TestBrokenFirst(t *testing.T) {
	s, cfg := serve(t, nil, &handler{do: answer, first: broken{}})
	q := question("a.example.org.", dns.TypeA)
	for _, network := range []string{"udp", "tcp"} {
		if m := testutil.Exchange(t, network, addressOf(cfg), q); len(m.Answer) != 1 {
			t.Errorf("%s: %v", network, m)
		}
	}
	wire := testutil.Packed(t, q)
	if code, err := s.Fetch(wire, nil); err != nil || code != dns.RcodeSuccess {
		t.Errorf("a mirrored query: %d, %v", code, err)
	}
}

type broken struct{}

func (broken) Answer([]byte, *fastpath.Query) ([]byte, queryinfo.Level, bool) { panic("broken") }

// TestNoGoroutinePerMiss: about a thousand queries for the chain, atOnce at a time, use at most 2*atOnce goroutines.
func TestNoGoroutinePerMiss(t *testing.T) {
	var mu sync.Mutex
	ran := map[string]bool{} // goroutines
	s, cfg := start(t, func(w dns.ResponseWriter, q *dns.Msg) {
		stack := make([]byte, 32)
		id, _, _ := strings.Cut(string(stack[:runtime.Stack(stack, false)]), " [")
		mu.Lock()
		ran[id] = true
		mu.Unlock()
		answer(w, q)
	})
	conn := dialUDP(t, addressOf(cfg))
	const atOnce = 16
	b := testutil.Packed(t, question("a.example.org.", dns.TypeA))
	for range 1000 / atOnce {
		for range atOnce {
			conn.Write(b)
		}
		buffer := make([]byte, 512)
		for range atOnce {
			if _, err := conn.Read(buffer); err != nil {
				t.Fatal(err)
			}
		}
		testutil.WaitFor("nothing is in work", func() bool { return inWork(s) == 0 })
	}
	mu.Lock()
	defer mu.Unlock()
	if len(ran) > 2*atOnce { // one that has just answered may not be idle yet
		t.Errorf("%d goroutines answered 1,000 questions, %d at a time", len(ran), atOnce)
	}
}

// TestAddresses: client returns the kernel's address without port, scope and IPv4 mapping; udp returns it with port and scope.
func TestAddresses(t *testing.T) {
	for text, want := range map[string]string{"10.244.1.7:53": "10.244.1.7", "[fd00::7]:65535": "fd00::7", "[fe80::1%7]:1": "fe80::1", "[::ffff:10.0.0.1]:9": "10.0.0.1"} {
		a := kernelAddress(netip.MustParseAddrPort(text))
		testutil.Equal(t, text+": the client", netip.MustParseAddr(want), a.client())
		ap := netip.MustParseAddrPort(text)
		if got := a.udp().AddrPort(); got.Port() != ap.Port() || got.Addr().Unmap() != ap.Addr().Unmap() {
			t.Errorf("%s: shown as %s", text, got)
		}
	}
}

// TestNoAllocationPerHit: a hit allocates nothing, from the datagram that was read to the answer.
func TestNoAllocationPerHit(t *testing.T) {
	s, cfg := serve(t, nobodyCounts{}, &handler{do: answer, first: echo{}})
	udp, _ := halves(t, s)
	conn := dialUDP(t, addressOf(cfg))
	b := testutil.Packed(t, question("a.example.org.", dns.TypeA))
	d, err := newDatagrams(udp, udp.socket.(*net.UDPConn)) // as the one that reads
	testutil.Must(t, err)
	for i := range batchSize {
		copy(d.buffers[i][:], b)
		d.in.headers[i].size = uint32(len(b))
		d.in.from[i] = kernelAddress(conn.LocalAddr().(*net.UDPAddr).AddrPort())
		d.in.headers[i].header.Namelen = sizeOf(d.in.from[i])
	}
	for what, n := range map[string]int{"one": 1, "a batch": batchSize} {
		again := func() {
			for i := range n {
				d.in.headers[i].header.Namelen = sizeOf(d.in.from[i])
			}
			d.serveBatch(n)
		}
		testutil.Equal(t, what+": allocations", 0, testing.AllocsPerRun(100, again))
	}
	if n, err := conn.Read(make([]byte, 512)); err != nil || n != len(b) {
		t.Errorf("nothing was sent: %d, %v", n, err)
	}
}

// halves returns a server's points for UDP and TCP.
func halves(t *testing.T, s *Server) (udp, tcp *point) {
	t.Helper()
	for _, p := range s.points {
		if p.udp != nil {
			udp = p
		} else {
			tcp = p
		}
	}
	if udp == nil || tcp == nil {
		t.Fatal("a protocol is not served")
	}
	return udp, tcp
}
