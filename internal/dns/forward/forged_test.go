package forward

import (
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// rejected is a server over UDP. For each query, forged ICMP errors arrive before its answer, and after it, when the socket waits for the
// next query.
func rejected(t *testing.T, address string, kind, code byte, rest uint32) (server string, asked *atomic.Int64) {
	t.Helper()
	icmp := testutil.NewForger(t)
	asked = new(atomic.Int64)
	return datagrams(t, address, func(w dns.ResponseWriter, q *dns.Msg) {
		if q.Question[0].Qtype != loopType {
			asked.Add(1)
		}
		client, at := w.RemoteAddr().(*net.UDPAddr).AddrPort(), w.LocalAddr().(*net.UDPAddr).AddrPort()
		for range 3 {
			icmp.Send(kind, code, rest, client, at)
		}
		_ = w.WriteMsg(answersAs("good")(q, false))
		for range 2 {
			icmp.Send(kind, code, rest, client, at)
		}
	}), asked
}

// An attacker who knows the agent's port can forge ICMP errors for its queries. The agent still waits for the answer, no query fails, and
// no server fails because of it, alone or with another server.
func TestForgedRejections(t *testing.T) {
	for name, tc := range map[string]struct {
		address    string
		kind, code byte
		rest       uint32
	}{
		"port unreachable":             {"127.0.0.1", 3, 3, 0},
		"host unreachable":             {"127.0.0.1", 3, 1, 0},
		"net unreachable":              {"127.0.0.1", 3, 0, 0},
		"prohibited":                   {"127.0.0.1", 3, 13, 0},
		"protocol unreachable":         {"127.0.0.1", 3, 2, 0},
		"fragmentation needed":         {"127.0.0.1", 3, 4, 576},
		"port unreachable, IPv6":       {"::1", 1, 4, 0},
		"no route, IPv6":               {"::1", 1, 0, 0},
		"prohibited, IPv6":             {"::1", 1, 1, 0},
		"packet too big, IPv6":         {"::1", 2, 0, 1280},
		"an unknown next header, IPv6": {"::1", 4, 1, 6},
	} {
		t.Run(name, func(t *testing.T) {
			server, asked := rejected(t, tc.address, tc.kind, tc.code, tc.rest)
			b := serveSockets(t, server)
			for i := range 10 {
				testutil.Equal(t, fmt.Sprint("the answer to query ", i), "good", b.answer(testutil.Context(t), "udp", fmt.Sprintf("n%d.example.", i)))
			}
			if asked.Load() < 10 {
				t.Errorf("ten questions, asked %d times", asked.Load())
			}
			if b.list[0].health.failing.Load() {
				t.Errorf("the server is called dead:\n%s", b.log)
			}
			other := newSocketFake(t, answersAs("other"))
			both := serveSockets(t, server, other.addr)
			for i := range 10 {
				if got := both.answer(testutil.Context(t), "udp", fmt.Sprintf("m%d.example.", i)); got != "good" && got != "other" {
					t.Errorf("question %d: %s", i, got)
				}
			}
			// A health check may run.
			testutil.Eventually(t, func() error { return testutil.ErrorIf(both.list[0].isChecking(), "a health check runs") })
			if both.list[0].health.failing.Load() {
				t.Errorf("the server is called dead:\n%s", both.log)
			}
		})
	}
}

// The same on virtual time: the answer comes when the server sends it. The agent does not query the same server again at once, because an
// attacker could then multiply the agent's queries.
func TestForgedRejectionsCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, onUDP, after(20*time.Millisecond, answersAs("good")))
		f.host.datagram = func(from *end, msg []byte) {
			from.reject(syscall.EHOSTUNREACH)
			f.datagram(from, msg)
			time.AfterFunc(10*time.Millisecond, func() { from.reject(syscall.ECONNREFUSED) })
			time.AfterFunc(30*time.Millisecond, func() { from.reject(syscall.ECONNREFUSED) })
		}
		other := newFake(t, onBoth, answersAs("other"))
		alone, both := serve(t, nil, f.addr), serve(t, nil, f.addr, other.addr)
		for i := range 10 {
			alone.want("udp", fmt.Sprintf("n%d.example.", i), "good", 20*time.Millisecond, 20*time.Millisecond)
		}
		testutil.Equal(t, "upstream queries for ten queries", 10, f.questions())
		for i := range 10 {
			both.want("udp", fmt.Sprintf("m%d.example.", i), "other", 0, 0)
		}
		<-time.After(time.Minute) // for the health checks
		for _, b := range []*block{alone, both} {
			if b.list[0].health.failing.Load() {
				t.Errorf("the server is called dead:\n%s", b.log)
			}
		}
	})
}

// A rejection may come while the query waits for another server: the next server is tried after the usual time, and a server whose queries
// are always rejected is tried last.
func TestRejectedAmidARace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quiet, closed := newFake(t, onUDP, silence), closedPort(t)
		good := newFake(t, onBoth, answersAs("good"))
		b := serve(t, nil, quiet.addr, closed, good.addr)
		for i := range failLimit {
			b.want("udp", fmt.Sprintf("n%d.example.", i), "good", 2*hedgeAfter, 2*hedgeAfter)
		}
		eventually(t, "a server that rejects all is asked last", b.server(closed).health.failing.Load)
	})
}
