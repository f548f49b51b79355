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

// reasonsOf sends a server one query over UDP and one over TCP, and returns the reasons of failure.
func reasonsOf(t testing.TB, by connect, addr string, end time.Time) (out [2]reason) {
	t.Helper()
	ss := NewServers(slog.New(slog.DiscardHandler))
	ss.connect = by
	s := ss.acquire(specs(t, addr)[0])
	defer ss.release(s)
	for _, stream := range []bool{false, true} {
		_, err := s.once(t.Context(), new(dns.Msg).SetQuestion("a.example.", dns.TypeTXT), stream, end)
		out[index(stream)] = reasonOf(good, err)
	}
	return out
}

// TestFaultsOfTheKernel: the kernel's errors for a server that is gone or breaks connections are classified correctly. The unit tests'
// network gives the same errors: see TestFaultsInMemory.
func TestFaultsOfTheKernel(t *testing.T) {
	testutil.RequireRoot(t)
	end, _ := testutil.Context(t).Deadline()
	l, pc := testutil.ListenBoth(t)
	l.Close()
	pc.Close()
	if got := reasonsOf(t, connectSocket, pc.LocalAddr().String(), end); got != [2]reason{reasonRefuses, reasonRefuses} {
		t.Errorf("nothing listens: %s", got)
	}
	good := newSocketFake(t, answersAs("good"))
	if got := reasonsOf(t, connectSocket, good.addr, end); got != [2]reason{} {
		t.Errorf("all is well: %s", got)
	}
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
		if got := reasonsOf(t, connectSocket, l.Addr().String(), end); got != [2]reason{reasonRefuses, reasonBroken} {
			t.Errorf("%s: %s", name, got)
		}
		l.Close()
		<-done
	}
}

func TestFaultsInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		until := time.Now().Add(time.Minute)
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
			if got := reasonsOf(t, connectInMemory, tc.addr, until); got != tc.want {
				t.Errorf("%s: %s, want %s", name, got, tc.want)
			}
			until = time.Now().Add(time.Minute)
		}
	})
}
