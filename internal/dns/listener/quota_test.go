package listener

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
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
	conn := dialUDP(t, addressOf(cfg))
	const questions = 100
	for i := range questions {
		write(t, conn, testutil.Packed(t, question(fmt.Sprintf("q%d.cluster.local.", i), dns.TypeA)))
	}
	testutil.WaitFor("half of the places are taken", func() bool {
		return inWork(s) == 8 && s.quota.dropped.Load() == questions-8
	})
	from, err := (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP("127.0.3.1")}}).Dial("udp", addressOf(cfg))
	testutil.Must(t, err)
	defer from.Close()
	neighbour := func(when string) {
		t.Helper() // the call's line names the case, if there is no answer
		if m := testutil.RoundTrip(t, &dns.Conn{Conn: from}, question("neighbour.cluster.local.", dns.TypeA)); len(m.Answer) != 1 {
			t.Errorf("another source, %s: %v", when, m)
		}
	}
	neighbour("in a flood")
	let()
	readIDs(t, &dns.Conn{Conn: conn}, 8)
	s.boundPackets(1000)
	for _, m := range strange(t) {
		conn.Write(m)
	}
	neighbour("behind odd messages")
	testutil.WaitFor("nothing is in work", func() bool { return inWork(s) == 0 })
	testutil.WaitFor("no source is remembered", func() bool { return s.sources() == 0 })
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
	conn := dialUDP(t, addressOf(cfg))
	wire := testutil.Packed(t, question("wait.cluster.local.", dns.TypeA))
	// The first may still be read, by a read that has begun.
	for range 2 {
		conn.Write(wire)
	}
	for range 20 { // the server works meanwhile
		testutil.Exchange(t, "tcp", addressOf(cfg), question("marker.cluster.local.", dns.TypeA))
	}
	testutil.Equal(t, "queries answered with no slot left", 0, answered.Load())
	s.boundPackets(10)
	for range 2 {
		if _, err := conn.Read(make([]byte, 512)); err != nil {
			t.Errorf("a query that waited: %v", err)
		}
	}
}

// TestConnectionFlood opens many connections from one address, idle ones and ones that send a byte or two, next to those of quiet
// neighbours: new connections of the flood replace its own longest idle ones, and no other client's. The limit is a reload's; a reload that
// fails changes none.
func TestConnectionFlood(t *testing.T) {
	s, cfg := start(t, answer)
	cfg.Connections, cfg.Misses = 32, 500
	bad := cfg.clone()
	bad.Addresses, bad.Connections = []netip.Addr{netip.MustParseAddr("192.0.2.1")}, 30
	build := (&handler{do: answer}).build
	testutil.Must(t, s.Restart(t.Context(), cfg, build))
	if got := counted(t, s); s.Restart(t.Context(), bad, build) == nil || got["tcp_connections_limit"] != 32 || got["udp_in_flight_limit"] != 756 {
		t.Errorf("limits after reloads: %v", got)
	}
	asks := func(what string, conn *dns.Conn) {
		t.Helper()
		err := conn.WriteMsg(question("a.example.org.", dns.TypeA))
		if err == nil {
			_, err = conn.ReadMsg()
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	var quiet, flood []*dns.Conn
	for i := range 4 {
		quiet = append(quiet, dialTCP(t, fmt.Sprintf("127.0.1.%d", i), cfg))
		asks("a neighbour", quiet[i])
	}
	for i := range 200 {
		flood = append(flood, dialTCP(t, "127.0.2.1", cfg))
		if i%2 == 0 {
			flood[i].Conn.Write([]byte{0, 40}[:1+i%3/2]) // the beginning of a query that never comes
		}
	}
	testutil.WaitFor("the flood is accepted and cut", func() bool { return counted(t, s)["tcp_connections_shed_total idle"] >= 186 })
	// Nothing is refused, also where accepting is faster than reading.
	if got := counted(t, s); got["tcp_connections"] < 17 || got["tcp_connections"] > 18 || got["tcp_connections_shed_total refused"] > 0 {
		t.Errorf("want the neighbours' 4 and half of the 28 other places, and none refused: %v", got)
	}
	for _, conn := range quiet {
		asks("a neighbour behind the flood", conn)
	}
	asks("a newcomer", dialTCP(t, "127.0.1.9", cfg))
	asks("the flood's own next one", dialTCP(t, "127.0.2.1", cfg))
	asks("the flood's youngest", flood[199])
	if _, err := flood[0].Conn.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the flood's longest idle connection: %v", err)
	}
	for _, c := range append(flood, quiet...) {
		c.Close()
	}
	testutil.WaitFor("closed connections are forgotten", func() bool { return counted(t, s)["tcp_connections"] <= 2 })
}
