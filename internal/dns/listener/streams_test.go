package listener

import (
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// tcpPair returns the two ends of a connection, which are closed when the test ends.
func tcpPair(t *testing.T) (client net.Conn, conn *net.TCPConn) {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	testutil.Must(t, err)
	defer l.Close()
	client, err = net.Dial("tcp", l.Addr().String())
	testutil.Must(t, err)
	t.Cleanup(func() { client.Close() })
	conn, err = l.AcceptTCP()
	testutil.Must(t, err)
	t.Cleanup(func() { conn.Close() })
	return client, conn
}

// TestWriteDeadline writes an answer on a connection whose deadline from an earlier answer is over: it does not apply to this one.
func TestWriteDeadline(t *testing.T) {
	_, conn := tcpPair(t)
	s := &stream{TCPConn: conn}
	testutil.Must(t, s.SetWriteDeadline(time.Unix(1, 0)))
	if n, err := s.Write([]byte("answer")); n != 6 || err != nil {
		t.Errorf("%d bytes were written: %v", n, err)
	}
}

// held is a chain that answers queries for names that begin with "slow" only after free is closed.
type held struct {
	handler
	cfg  Config
	in   atomic.Int64 // queries that it keeps
	free chan struct{}
}

// newHeld starts a server with such a chain, a fast path for one name, and limits.end, and returns a connection to the server, too.
func newHeld(t *testing.T, o Observer, end time.Duration) (h *held, s *Server, conn *dns.Conn) {
	t.Helper()
	h = &held{free: make(chan struct{}), handler: handler{first: &shelf{name: "kept.example.org."}, end: end}}
	h.do = func(w dns.ResponseWriter, q *dns.Msg) {
		if strings.HasPrefix(q.Question[0].Name, "slow") {
			h.in.Add(1)
			<-h.free
			h.in.Add(-1)
		}
		answer(w, q)
	}
	s, h.cfg = serve(t, o, &h.handler)
	return h, s, dialTCP(t, "127.0.0.1", h.cfg)
}

func dialTCP(t *testing.T, from string, cfg Config) *dns.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := d.Dial("tcp", addressOf(cfg))
	testutil.Must(t, err)
	t.Cleanup(func() { conn.Close() })
	return &dns.Conn{Conn: conn}
}

func send(t *testing.T, conn *dns.Conn, id uint16, name string) {
	t.Helper()
	q := question(name, dns.TypeA)
	q.Id = id
	testutil.Must(t, conn.WriteMsg(q))
}

// readIDs returns the IDs of the next n answers.
func readIDs(t *testing.T, conn *dns.Conn, n int) (ids []uint16) {
	t.Helper()
	for range n {
		m, err := conn.ReadMsg()
		if err != nil {
			t.Fatalf("after %v: %v", ids, err)
		}
		ids = append(ids, m.Id)
	}
	return ids
}

func wantIDs(t *testing.T, conn *dns.Conn, want ...uint16) {
	t.Helper()
	if got := readIDs(t, conn, len(want)); !slices.Equal(got, want) {
		t.Fatalf("answers %v, want %v", got, want)
	}
}

// wantEnd fails the test unless the server has ended the connection behind its last answer.
func wantEnd(t *testing.T, conn *dns.Conn) {
	t.Helper()
	if _, err := conn.ReadMsg(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last answer: %v", err)
	}
}

// TestPipelined: a query over TCP does not wait for the answer to the one before it, whichever handler answers. (RFC 7766, sections 6.2.1.1
// and 7.)
func TestPipelined(t *testing.T) {
	h, _, conn := newHeld(t, nil, time.Hour)
	send(t, conn, 1, "slow.example.org.")
	testutil.WaitFor("the slow one is in work", func() bool { return h.in.Load() == 1 })
	send(t, conn, 2, "fast.example.org.")
	wantIDs(t, conn, 2)
	send(t, conn, 3, "kept.example.org.")
	wantIDs(t, conn, 3)
	// A message that is not a query is answered meanwhile, too.
	write(t, conn.Conn, []byte{0, 12, 0, 4, 0x28, 0, 0, 0, 0, 0, 0, 0, 0, 0}) // UPDATE without a zone
	wantIDs(t, conn, 4)
	close(h.free)
	wantIDs(t, conn, 1)
}

// TestHalfClosed: a client that closes its sending side still gets its answers, and then the connection ends.
func TestHalfClosed(t *testing.T) {
	h, _, conn := newHeld(t, nil, time.Hour)
	send(t, conn, 1, "slow.example.org.")
	send(t, conn, 2, "slower.example.org.")
	testutil.Must(t, conn.Conn.(*net.TCPConn).CloseWrite())
	testutil.WaitFor("both are in work", func() bool { return h.in.Load() == 2 })
	h.free <- struct{}{}
	h.free <- struct{}{}
	readIDs(t, conn, 2)
	wantEnd(t, conn)
}

// TestPipedShare: a client with its share of TCP queries in progress waits for its own answers, and another client is answered. No query is
// lost.
func TestPipedShare(t *testing.T) {
	h, s, first := newHeld(t, nil, time.Hour)
	const each = 200
	greedy := []*dns.Conn{first, dialTCP(t, "127.0.0.1", h.cfg), dialTCP(t, "127.0.0.1", h.cfg)}
	for _, conn := range greedy {
		go func() { // ends with the last query, or the connection
			for i := range uint16(each) {
				q := question("slow.example.org.", dns.TypeA)
				q.Id = i
				_ = conn.WriteMsg(q)
			}
		}()
	}
	// Half of all slots, and one query for each connection, which is read no further.
	const most = running/2 + 3
	testutil.WaitFor("the share is taken", func() bool { return h.in.Load() == most })
	other := dialTCP(t, "127.0.0.2", h.cfg)
	for i := range uint16(20) {
		send(t, other, 2*i, "slow.example.org.")
		send(t, other, 2*i+1, "fast.example.org.")
		wantIDs(t, other, 2*i+1)
	}
	testutil.WaitFor("the other's are in work", func() bool { return h.in.Load() >= most+20 }) // the last may begin after the answer to the one behind it
	testutil.Equal(t, "queries in progress", most+20, h.in.Load())
	close(h.free)
	for _, conn := range greedy {
		ids := readIDs(t, conn, each)
		slices.Sort(ids)
		testutil.Equal(t, "queries answered", each, len(slices.Compact(ids)))
	}
	testutil.WaitFor("all places are free", func() bool { return s.piped() == 0 })
}

// TestPipedStop: a server that stops answers what was sent before, over UDP and on a connection, and then ends the connection at once.
func TestPipedStop(t *testing.T) {
	h, s, conn := newHeld(t, nil, time.Hour)
	send(t, conn, 1, "slow.example.org.")
	testutil.WaitFor("it is in work", func() bool { return h.in.Load() == 1 })
	udp := &dns.Conn{Conn: dialUDP(t, addressOf(h.cfg))}
	const many = 200
	for i := range uint16(many) {
		send(t, udp, i, "fast.example.org.")
		send(t, conn, 2+i, "fast.example.org.")
	}
	done := stopping(t, s)
	readIDs(t, udp, many)
	close(h.free)
	readIDs(t, conn, many+1)
	wantEnd(t, conn)
	testutil.Must(t, <-done)
}

// TestPartsAtTheEnd: a server that stops waits for the rest of a query that has begun to arrive, even if the query before it is answered
// meanwhile.
func TestPartsAtTheEnd(t *testing.T) {
	h, s, conn := newHeld(t, nil, time.Hour)
	send(t, conn, 1, "slow.example.org.")
	second := question("fast.example.org.", dns.TypeA)
	second.Id = 2
	wire := framed(testutil.Packed(t, second))
	write(t, conn.Conn, wire[:9])
	_, tcp := halves(t, s)
	testutil.WaitFor("a part is read", func() bool {
		tcp.conns.mu.Lock()
		defer tcp.conns.mu.Unlock()
		for c := range tcp.conns.open {
			return h.in.Load() == 1 && c.partly && c.unread() == 0
		}
		return false
	})
	done := stopping(t, s)
	close(h.free)
	wantIDs(t, conn, 1)
	write(t, conn.Conn, wire[9:])
	wantIDs(t, conn, 2)
	wantEnd(t, conn)
	testutil.Must(t, <-done)
}

// TestEndlessQueries: when a point ends, a client that always has a query on its way keeps its connection, but only until the time is over.
func TestEndlessQueries(t *testing.T) {
	client, conn := tcpPair(t)
	of := &streams{quota: newQuota(Config{Connections: 1})}
	c := of.add(conn)
	defer c.Close()
	of.await(c)
	of.heard(c)
	write(t, client, []byte("the next query"))
	testutil.WaitFor("it has arrived", func() bool { return c.unread() > 0 })
	for _, cut := range []bool{false, true} {
		of.drain(time.Unix(1, 0), cut)
		if goes, ends := of.await(c); goes == cut || !ends {
			t.Errorf("cut %t: goes %t, ends %t", cut, goes, ends)
		}
	}
}

// TestReset: the slots of a client that resets its connection are free once its queries are answered, and the observer gets its queries.
func TestReset(t *testing.T) {
	w := new(watcher)
	h, s, conn := newHeld(t, w, time.Hour)
	const questions = 50
	for i := range uint16(questions) {
		send(t, conn, i, "slow.example.org.")
	}
	testutil.WaitFor("they are in work", func() bool { return h.in.Load() == questions })
	testutil.Must(t, errors.Join(conn.Conn.(*net.TCPConn).SetLinger(0), conn.Close()))
	close(h.free)
	w.take(t, questions)
	testutil.WaitFor("it has no place", s.noPlaces)
	testutil.Equal(t, "further reports", 0, len(w.take(t, 0)))
}

// deafClient sends queries for large answers, and reads none of these, until its connection is closed.
func deafClient(t *testing.T) *Server {
	t.Helper()
	big := make([]dns.RR, 200)
	for i := range big {
		big[i] = &dns.TXT{Hdr: dns.RR_Header{Name: "a.", Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 1}, Txt: []string{strings.Repeat("x", 255)}}
	}
	s, cfg := start(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		m.Answer = big
		_ = w.WriteMsg(m)
	})
	conn := dialTCP(t, "127.0.0.1", cfg)
	testutil.Must(t, conn.Conn.(*net.TCPConn).SetReadBuffer(4096))
	for conn.WriteMsg(question("a.", dns.TypeTXT)) == nil {
	}
	return s
}

// TestDeafClient: a client that does not read its answers loses its connection and its slots.
func TestDeafClient(t *testing.T) {
	testutil.RequireRoot(t) // the server waits maxWrite for the client
	t.Parallel()
	s := deafClient(t)
	testutil.WaitFor("it has no place", s.noPlaces)
}

// TestGiantQuestion: only maxQueryTCP bytes of a query over TCP are used. A longer query is malformed, and the next one is read correctly.
func TestGiantQuestion(t *testing.T) {
	_, cfg := serve(t, nil, &handler{do: answer})
	conn := dialTCP(t, "127.0.0.1", cfg)
	for i, size := range []int{maxQueryTCP, maxQueryTCP + 1, dns.MaxMsgSize, 100} {
		q := question("a.example.org.", dns.TypeA)
		q.Id = uint16(i)
		q.SetEdns0(1232, false)
		q.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_PADDING{Padding: make([]byte, size-q.Len()-4)}}
		m := testutil.RoundTrip(t, conn, q)
		if want := size > maxQueryTCP; int(m.Id) != i || want != (m.Rcode == dns.RcodeFormatError) {
			t.Errorf("%d bytes: %v", size, m)
		}
	}
}
