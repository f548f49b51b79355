package ask

import (
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// rejected is a server over UDP, of whose every question somebody says by ICMP that it was in vain: before its answer, or also after it,
// when its socket waits for the next question.
func rejected(t *testing.T, address string, kind, code byte, rest uint32) (server string, asked *atomic.Int64) {
	t.Helper()
	icmp := testutil.NewForger(t)
	asked = new(atomic.Int64)
	return datagrams(t, address, func(pc net.PacketConn, from net.Addr, q *dns.Msg) {
		if q.Question[0].Qtype != loopType {
			asked.Add(1)
		}
		client, at := from.(*net.UDPAddr).AddrPort(), pc.LocalAddr().(*net.UDPAddr).AddrPort()
		for range 3 {
			icmp.Send(kind, code, rest, client, at)
		}
		<-time.After(20 * time.Millisecond)
		reply(pc, from, says("good")(q, false))
		for range 2 {
			icmp.Send(kind, code, rest, client, at)
		}
	}), asked
}

// usual asks ten times, and fails unless eight of the questions take no longer than most: a busy machine can hold up one of them.
func usual(t *testing.T, most time.Duration, ask func(i int) time.Duration) {
	t.Helper()
	var took []time.Duration
	for i := range 10 {
		took = append(took, ask(i))
	}
	slices.Sort(took)
	if took[7] > most {
		t.Errorf("the questions took %v, eight of them should take at most %s", took, most)
	}
}

// Whoever knows the agent's port can forge what a router says of its questions. The answer is waited for all the same, no question fails,
// and no server is called dead for it, beside another or alone.
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
			b := serve(t, nil, server)
			usual(t, quick, func(i int) time.Duration {
				got, took := b.ask("udp", fmt.Sprintf("n%d.example.", i))
				if got != "good" {
					t.Errorf("question %d: %s after %s", i, got, took)
				}
				return took
			})
			// One that was lied about is not asked again at once: whoever lies would multiply the agent's questions.
			if n := asked.Load(); n < 10 || n > 16 { // all of them: 20, and a busy machine asks some again
				t.Errorf("ten questions, asked %d times", n)
			}
			if b.list[0].health.failing.Load() {
				t.Errorf("the server is called dead:\n%s", b.log)
			}
			other := newFake(t, onBoth, says("other"))
			both := serve(t, nil, server, other.addr)
			usual(t, quick, func(i int) time.Duration {
				got, took := both.ask("udp", fmt.Sprintf("m%d.example.", i))
				if got != "good" && got != "other" {
					t.Errorf("question %d: %s after %s", i, got, took)
				}
				return took
			})
			// It was suspected, perhaps, and looked at.
			testutil.Eventually(t, func() error {
				if both.list[0].health.checking.Load() {
					return fmt.Errorf("it is being looked at")
				}
				return nil
			})
			if both.list[0].health.failing.Load() {
				t.Errorf("the server is called dead:\n%s", both.log)
			}
		})
	}
}

// A rejection that is true costs a question nothing beside another server, and what nobody answers ends soon.
func TestTrueRejections(t *testing.T) {
	addr := nobody(t)
	good := newFake(t, onBoth, says("good"))
	b := serve(t, nil, addr, good.addr)
	usual(t, 250*time.Millisecond, func(i int) time.Duration {
		got, took := b.ask("udp", fmt.Sprintf("n%d.example.", i))
		if got != "good" {
			t.Errorf("question %d: %s after %s", i, got, took)
		}
		return took
	})
	testutil.Eventually(t, func() error {
		if !b.list[0].health.failing.Load() {
			return fmt.Errorf("the dead server is asked first:\n%s", b.log)
		}
		return nil
	})
	alone := serve(t, nil, addr)
	if got, took := alone.ask("udp", "n.example."); got == "good" || took > 2*time.Second {
		t.Errorf("nobody answers: %s after %s", got, took)
	}
}

// A rejection may come while another server is waited for: who is next is asked at once, and a server whose questions are rejected each
// time is asked last.
func TestRejectedAmidARace(t *testing.T) {
	quiet, closed := newFake(t, onUDP, silence), nobody(t)
	good := newFake(t, onBoth, says("good"))
	usual(t, 2*hedgeAfter-20*time.Millisecond, func(i int) time.Duration {
		got, took := serve(t, nil, quiet.addr, closed, good.addr).ask("udp", fmt.Sprintf("n%d.example.", i))
		if got != "good" || took < hedgeAfter {
			t.Errorf("question %d: %s after %s", i, got, took)
		}
		return took
	})
	b := serve(t, nil, quiet.addr, closed, good.addr)
	asked := 0 // more than failLimit where this process was late for one: then it blames nobody
	eventually(t, "a server that rejects all is asked last", func() bool {
		b.ask("udp", fmt.Sprintf("m%d.example.", asked))
		asked++
		return asked >= failLimit && b.server(closed).health.failing.Load()
	})
}
