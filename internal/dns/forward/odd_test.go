package forward

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// raw returns the address of a server over TCP that calls each for every connection.
func raw(t testing.TB, each func(c net.Conn)) string {
	t.Helper()
	h := newHost(t)
	h.accept = func(c *end) { each(c) }
	return h.addr
}

// If a server breaks off an answer or sends something else, the only cost is the query to the next server.
func TestBrokenAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		readOne := func(c net.Conn) *dns.Msg {
			co := &dns.Conn{Conn: c}
			m, err := co.ReadMsg()
			if err != nil {
				return new(dns.Msg)
			}
			return m
		}
		for name, each := range map[string]func(c net.Conn){
			"reset in the middle": func(c net.Conn) {
				readOne(c)
				c.Write([]byte{0, 200, 1, 2, 3})
				c.(*end).reset()
			},
			"closed before the answer":   func(c net.Conn) { readOne(c) },
			"closed in the length":       func(c net.Conn) { readOne(c); c.Write([]byte{0}) },
			"more than was asked for":    func(c net.Conn) { readOne(c); c.Write(make([]byte, 600)) },
			"an answer shorter than one": func(c net.Conn) { readOne(c); c.Write([]byte{0, 3, 1, 2, 3}) },
			"another ID": func(c net.Conn) {
				m := answersAs("liar")(readOne(c), true)
				m.Id++
				(&dns.Conn{Conn: c}).WriteMsg(m)
			},
			"another question": func(c net.Conn) {
				q := readOne(c)
				m := answersAs("liar")(new(dns.Msg).SetQuestion("other.example.", dns.TypeTXT), true)
				m.Id = q.Id
				(&dns.Conn{Conn: c}).WriteMsg(m)
			},
			"the question itself": func(c net.Conn) { (&dns.Conn{Conn: c}).WriteMsg(readOne(c)) },
			"nothing readable": func(c net.Conn) {
				q := readOne(c)
				m := new(dns.Msg).SetReply(q)
				wire, _ := m.Pack()
				wire[7] = 9 // nine answers, of which none follows
				c.Write(append([]byte{0, byte(len(wire))}, wire...))
			},
		} {
			func(t testing.TB) {
				good := newFake(t, onBoth, answersAs("good"))
				b := serve(t, tcp, raw(t, each), good.addr)
				for i := range 5 {
					b.want("udp", fmt.Sprintf("n%d.example.", i), "good", 0, quick)
				}
				if !b.list[0].health.failing.Load() || b.list[1].health.failing.Load() {
					t.Errorf("the wrong server is passed over:\n%s", b.log)
				}
			}(named{t, name})
		}
	})
}

// Datagrams that do not answer the query may be forged: they are ignored, and the wait for the answer goes on.
func TestForgedDatagrams(t *testing.T) {
	testutil.RequireRoot(t) // kernel tier: only the kernel knows a datagram from another port
	server := datagrams(t, "127.0.0.1", func(w dns.ResponseWriter, q *dns.Msg) {
		send := func(m *dns.Msg) { _ = w.WriteMsg(m) }
		otherID := answersAs("liar")(q, false)
		otherID.Id++
		send(otherID)
		otherName := answersAs("liar")(new(dns.Msg).SetQuestion("x.example.", dns.TypeTXT), false)
		otherName.Id = q.Id
		send(otherName)
		otherType := answersAs("liar")(new(dns.Msg).SetQuestion(q.Question[0].Name, dns.TypeA), false)
		otherType.Id = q.Id
		send(otherType)
		otherClass := answersAs("liar")(q, false)
		otherClass.Question = []dns.Question{{Name: q.Question[0].Name, Qtype: dns.TypeTXT, Qclass: dns.ClassCHAOS}}
		send(otherClass)
		otherOpcode := answersAs("liar")(q, false)
		otherOpcode.Opcode = dns.OpcodeNotify
		send(otherOpcode)
		noQuestion := answersAs("liar")(q, false)
		noQuestion.Question = nil
		send(noQuestion)
		notAnswer := answersAs("liar")(q, false)
		notAnswer.Response = false
		send(notAnswer)
		w.Write([]byte("short"))
		elsewhere, err := net.Dial("udp", w.RemoteAddr().String()) // from another port
		if err == nil {
			wire, _ := answersAs("liar")(q, false).Pack()
			elsewhere.Write(wire)
			elsewhere.Close()
		}
		send(answersAs("good")(q, false))
	})
	b := serveSockets(t, server)
	for i := range 5 {
		testutil.Equal(t, fmt.Sprint("the answer to query ", i), "good", b.answer(testutil.Context(t), "udp", fmt.Sprintf("N%d.Example.", i)))
	}
}

// Query IDs are random, also over a pooled connection (RFC 5452, section 9.2).
func TestIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, stream := range []bool{false, true} {
			var mu sync.Mutex
			var ids []uint16
			f := newFake(t, onBoth, func(q *dns.Msg, stream bool) *dns.Msg {
				mu.Lock()
				defer mu.Unlock()
				ids = append(ids, q.Id)
				return answersAs("upstream")(q, stream)
			})
			b := serve(t, func(a *Block) { a.stream = stream }, f.addr)
			for i := range 64 {
				b.ask("udp", fmt.Sprintf("n%d.example.", i))
			}
			mu.Lock()
			seen, steps := map[uint16]bool{}, map[uint16]int{}
			for i, id := range ids {
				seen[id] = true
				if i > 0 {
					steps[id-ids[i-1]]++
				}
			}
			mu.Unlock()
			for step, n := range steps {
				if n > 4 {
					t.Errorf("stream %t: %d of %d IDs are the one before and %d", stream, n, len(ids), step)
				}
			}
			if len(seen) < 56 { // two are the same in every thirtieth run or so
				t.Errorf("stream %t: %d questions, %d IDs", stream, len(ids), len(seen))
			}
		}
	})
}

// head gives the whole answer over a stream, and an empty truncated one over a datagram.
func head(q *dns.Msg, stream bool) *dns.Msg {
	m := answersAs("whole")(q, stream)
	if !stream {
		m.Answer, m.Truncated = nil, true
	}
	return m
}

// A truncated answer is fetched over TCP, so that it can be cached. If the server has no TCP, clients over UDP soon get the truncated
// answer.
func TestTruncated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, onBoth, head)
		b := serve(t, nil, f.addr)
		b.want("udp", "a.example.", "whole", 0, quick)
		if f.asked[0].Load() != 1 || f.asked[1].Load() != 1 || b.list[0].prefersDatagrams(time.Now()) {
			t.Errorf("asked %d over UDP, %d over TCP", f.asked[0].Load(), f.asked[1].Load())
		}
		b.want("tcp", "b.example.", "whole", 0, quick)
		if f.asked[0].Load() != 1 {
			t.Error("a client over TCP was asked for over UDP")
		}
		other := newFake(t, onBoth, answersAs("other"))
		b = serve(t, nil, f.addr, other.addr)
		b.want("udp", "c.example.", "whole", 0, quick)
		if other.questions() != 0 {
			t.Error("another server was asked for what is only long")
		}
		only := newFake(t, onUDP, head)
		b = serve(t, nil, only.addr)
		b.want("udp", "a.example.", "truncated", 0, quick)
		b.want("udp", "b.example.", "truncated", 0, quick)
		testutil.Equal(t, "upstream queries for two queries", 2, only.questions())
		// Streams stay silent: a long answer waits for them only briefly, because the client can retry over TCP.
		mute := newFake(t, onBoth, func(q *dns.Msg, stream bool) *dns.Msg {
			if stream {
				return nil
			}
			return head(q, stream)
		})
		b = serve(t, nil, mute.addr)
		for i := range 3 {
			b.want("udp", fmt.Sprintf("n%d.example.", i), "truncated", hedgeAfter, hedgeAfter)
		}
	})
}

// Answers of every size, over both protocols.
func TestSizes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		big := func(q *dns.Msg, _ bool) *dns.Msg {
			m := new(dns.Msg).SetReply(q)
			var n int
			fmt.Sscanf(q.Question[0].Name, "n%d.", &n)
			for i := 0; i < n; i += 200 {
				m.Extra = append(m.Extra, &dns.TXT{Hdr: dns.RR_Header{Name: "x.", Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{strings.Repeat("x", min(200, n-i))}})
			}
			m.Answer = answersAs("big")(q, true).Answer
			return m
		}
		f := newFake(t, onBoth, big)
		b := serve(t, tcp, f.addr)
		for _, n := range []int{1, 400, 3900, 4000, 4094, 20000, 50000} {
			b.want("udp", fmt.Sprintf("n%d.example.", n), "big", 0, quick)
		}
	})
}

// One good server is enough, if others before or after it are silent or have no route.
func TestSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good := newFake(t, onBoth, answersAs("good"))
		for name, servers := range map[string][]string{
			"the first silent":  {blackhole(t), good.addr},
			"the second silent": {good.addr, blackhole(t)},
			"three silent":      {blackhole(t), blackhole(t), blackhole(t), good.addr},
			"one family only":   {"[fd00::1]:53", good.addr},
		} {
			for _, stream := range []bool{false, true} {
				func(t testing.TB) {
					b := serve(t, func(a *Block) { a.stream = stream }, servers...)
					b.want("udp", "a.example.", "good", 0, 4*hedgeAfter-20*time.Millisecond) // 900 ms if three servers are silent
				}(named{t, fmt.Sprintf("%s, TCP %v", name, stream)})
			}
		}
	})
}

// TestOrder checks which server's answer a client gets.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := newFake(t, onBoth, answersAs("one")), newFake(t, onBoth, answersAs("two"))
		b := serve(t, func(a *Block) { a.resorts = specs(t, two.addr) }, one.addr)
		for i := range 10 {
			b.want("udp", fmt.Sprintf("n%d.example.", i), "one", 0, quick)
		}
		if two.questions() != 0 || b.resorted.Load() != 0 {
			t.Errorf("the last resort was asked %d times", two.questions())
		}
		// SERVFAIL of the first server and REFUSED of the second: the client gets SERVFAIL (see rank).
		one.behave(code(dns.RcodeServerFailure))
		two.behave(code(dns.RcodeRefused))
		b.want("udp", "x.example.", "SERVFAIL", 0, quick)
		if b.list[0].health.fails.Load() != 0 {
			t.Error("a server was blamed for a name that nobody answers")
		}
		one.behave(denies("."))
		b.Block.holds = []string{"example."}
		b.want("udp", "y.example.", "NXDOMAIN", 0, quick)
	})
}
