package listener

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
)

// TestPacketsInWork: one client gets half of the slots, its further queries are dropped, and another client is still served. Every kind
// of datagram frees its slot.
func TestPacketsInWork(t *testing.T) {
	release := make(chan struct{})
	let := sync.OnceFunc(func() { close(release) })
	defer let()
	s, cfg := start(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if strings.HasPrefix(q.Question[0].Name, "q") {
			<-release
		}
		answer(w, q)
	})
	s.boundPackets(16)
	conn, err := net.Dial("udp", addressOf(cfg))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const questions = 100
	for i := range questions {
		wire, err := question(fmt.Sprintf("q%d.cluster.local.", i), dns.TypeA).Pack()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(wire); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "half of the places are taken", func() bool {
		return inWork(s) == 8 && s.quota.dropped.Load() == questions-8
	})
	from, err := (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP("127.0.3.1")}}).Dial("udp", addressOf(cfg))
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	neighbour := &dns.Conn{Conn: from}
	if err := neighbour.WriteMsg(question("neighbour.cluster.local.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	if m, err := neighbour.ReadMsg(); err != nil || len(m.Answer) != 1 {
		t.Errorf("another source: %v, %v", m, err)
	}
	let()
	buf := make([]byte, 512)
	for i := range 8 {
		if _, err := conn.Read(buf); err != nil {
			t.Fatalf("%d of 8 answers: %v", i, err)
		}
	}
	s.boundPackets(1000)
	junk(t, cfg)
	waitFor(t, "nothing is in work", func() bool { return inWork(s) == 0 })
	if m := ask(t, "udp", addressOf(cfg), question("after.cluster.local.", dns.TypeA)); len(m.Answer) != 1 {
		t.Errorf("afterwards: %v", m)
	}
	waitFor(t, "no source is remembered", func() bool { return s.sources() == 0 })
}

// TestFullQuota: while no slot is free, the server does not read. Queries wait in the socket and are answered later.
func TestFullQuota(t *testing.T) {
	var answered atomic.Int64 // over UDP
	s, cfg := start(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if q.Question[0].Name == "wait.cluster.local." {
			answered.Add(1)
		}
		answer(w, q)
	})
	s.boundPackets(0)
	conn, err := net.Dial("udp", addressOf(cfg))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	wire, err := question("wait.cluster.local.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	// The first may still be read, by a read that has begun.
	for range 2 {
		conn.Write(wire)
	}
	for range 20 { // the server works meanwhile
		ask(t, "tcp", addressOf(cfg), question("marker.cluster.local.", dns.TypeA))
	}
	if n := answered.Load(); n > 0 {
		t.Errorf("%d queries are answered with no slot left", n)
	}
	s.boundPackets(10)
	for range 2 {
		if _, err := conn.Read(make([]byte, 512)); err != nil {
			t.Errorf("a query that waited: %v", err)
		}
	}
}

// junk sends messages that are answered or dropped before the chain: other opcodes, responses, two entries in the question section, noise of every length.
func junk(t *testing.T, cfg Config) {
	t.Helper()
	conn, err := net.Dial("udp", addressOf(cfg))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r := rand.New(rand.NewPCG(1, 2))
	for opcode := range 16 {
		m := question("x.example.org.", dns.TypeA)
		m.Opcode, m.Response = opcode, opcode == 15
		if opcode == 14 {
			m.Opcode, m.Question = 0, append(m.Question, m.Question[0])
		}
		wire, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		for cut := range wire {
			conn.Write(wire[:cut])
		}
		conn.Write(wire)
		noise := make([]byte, opcode*40)
		for i := range noise {
			noise[i] = byte(r.Uint32())
		}
		conn.Write(noise)
	}
	// A good header, and a query that is none: the library finds out only when it has begun.
	long := make([]byte, 600)
	long[5] = 1
	for _, m := range [][]byte{long, long[:20], append(long[:12:12], 63, 'x')} {
		conn.Write(m)
	}
}
