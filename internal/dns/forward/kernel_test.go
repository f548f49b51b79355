package forward

import (
	"bufio"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// wantReasons sends a server one query over UDP and one over TCP, and compares the reasons of failure.
func wantReasons(t testing.TB, what string, by connect, addr string, end time.Time, want [2]reason) {
	t.Helper()
	var got [2]reason
	ss := NewServers(slog.New(slog.DiscardHandler))
	ss.connect = by
	s := ss.acquire(specs(t, addr)[0])
	defer ss.release(s)
	for _, stream := range []bool{false, true} {
		_, err := s.once(t.Context(), new(dns.Msg).SetQuestion("a.example.", dns.TypeTXT), stream, end)
		got[index(stream)] = reasonOf(good, err)
	}
	if got != want {
		t.Errorf("%s: %s, want %s", what, got, want)
	}
}

// TestFaultsOfTheKernel: the kernel's errors for a server that is gone or breaks connections are classified correctly. The unit tests'
// network gives the same errors: see TestFaultsInMemory.
func TestFaultsOfTheKernel(t *testing.T) {
	testutil.RequireRoot(t)
	end, _ := testutil.Context(t).Deadline()
	l, pc := testutil.ListenBoth(t)
	l.Close()
	pc.Close()
	wantReasons(t, "nothing listens", connectSocket, pc.LocalAddr().String(), end, [2]reason{reasonRefuses, reasonRefuses})
	wantReasons(t, "all is well", connectSocket, newSocketFake(t, answersAs("good")).addr, end, [2]reason{})
	for name, linger := range map[string]int{"closed": -1, "reset": 0} {
		l, pc := testutil.ListenBoth(t)
		pc.Close()
		done := make(chan struct{})
		go func() {
			defer close(done)
			if c, err := l.Accept(); err == nil {
				bufio.NewReader(c).Peek(14) // the query
				c.(*net.TCPConn).SetLinger(linger)
				c.Close()
			}
		}()
		wantReasons(t, name, connectSocket, l.Addr().String(), end, [2]reason{reasonRefuses, reasonBroken})
		l.Close()
		<-done
	}
}

func TestFaultsInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, tc := range map[string]struct {
			addr string
			want [2]reason
		}{
			"nothing listens": {closedPort(t), [2]reason{reasonRefuses, reasonRefuses}},
			"all is well":     {newFake(t, onBoth, answersAs("good")).addr, [2]reason{}},
			"closed":          {raw(t, func(c net.Conn) { bufio.NewReader(c).Peek(14) }), [2]reason{reasonRefuses, reasonBroken}},
			"reset":           {raw(t, func(c net.Conn) { bufio.NewReader(c).Peek(14); c.(*end).reset() }), [2]reason{reasonRefuses, reasonBroken}},
			"no connection":   {blackhole(t), [2]reason{reasonSilent, reasonSilent}},
		} {
			wantReasons(t, name, connectInMemory, tc.addr, time.Now().Add(time.Minute), tc.want)
		}
	})
}
