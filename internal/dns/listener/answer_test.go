package listener

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/dns/queryinfo"
	"github.com/neardns/neardns/pkg/testutil"
)

// watcher is an observer that knows each client by its address's text.
type watcher struct {
	mu   sync.Mutex // guards the field below
	seen []queryinfo.Answer
}

func (*watcher) Identify(client netip.Addr) any {
	if !client.IsValid() {
		return nil
	}
	return "who is at " + client.String()
}

func (w *watcher) Record(a queryinfo.Answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, a)
}

// take returns what the watcher saw, once it saw n reports.
func (w *watcher) take(t testing.TB, n int) (seen []queryinfo.Answer) {
	t.Helper()
	testutil.WaitFor(fmt.Sprintf("%d answers are observed", n), func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		if seen = w.seen; len(seen) >= n {
			w.seen = nil
		}
		return len(seen) >= n
	})
	return seen
}

// shelf is a fast path that answers queries for one name.
type shelf struct {
	name  string
	asked fastpath.Query // the last query, without its message
	mu    sync.Mutex
}

func (s *shelf) Answer(b []byte, q *fastpath.Query) ([]byte, queryinfo.Level, bool) {
	m := new(dns.Msg)
	s.mu.Lock()
	s.asked = fastpath.Query{Client: q.Client, Identity: q.Identity, TCP: q.TCP}
	s.mu.Unlock()
	if err := m.Unpack(q.Wire); err != nil || len(m.Question) != 1 || m.Question[0].Name != s.name {
		return b, queryinfo.Hit, false
	}
	wire, err := new(dns.Msg).SetRcode(m, dns.RcodeNameError).Pack()
	return append(b, wire...), queryinfo.Stale, err == nil
}

// serve starts a server with an observer and a chain that may have a fast path. start takes a function instead.
func serve(t testing.TB, o Observer, h *handler) (*Server, Config) {
	t.Helper()
	s, cfg := New(slog.New(slog.DiscardHandler), o), configOf(t)
	s.limits = limits{first: time.Hour, next: time.Hour, end: h.end}
	testutil.Must(t, s.Start(t.Context(), cfg, h.build, nil))
	t.Cleanup(func() { testutil.Must(t, s.Stop()) })
	return s, cfg
}

// TestObserver: each query is reported once, whichever handler answers it, over UDP and TCP.
func TestObserver(t *testing.T) {
	local := netip.MustParseAddr("127.0.0.1")
	size := func(m *dns.Msg) int { return len(testutil.Packed(t, m)) }
	kept := question("a.example.org.", dns.TypeA)
	for name, tc := range map[string]struct {
		do    func(w dns.ResponseWriter, q *dns.Msg)
		level queryinfo.Level
		want  queryinfo.Answer
	}{
		"a message": {func(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(new(dns.Msg).SetReply(q)) }, queryinfo.Miss,
			queryinfo.Answer{Size: size(new(dns.Msg).SetReply(kept))}},
		"bytes": {func(w dns.ResponseWriter, q *dns.Msg) {
			b, _ := new(dns.Msg).SetRcode(q, dns.RcodeNameError).Pack()
			_, _ = w.Write(b)
		}, queryinfo.Hit, queryinfo.Answer{Rcode: dns.RcodeNameError, Size: size(kept), Level: queryinfo.Hit}},
		"a failure": {func(w dns.ResponseWriter, q *dns.Msg) {
			_ = w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeServerFailure))
		}, queryinfo.Miss,
			queryinfo.Answer{Rcode: dns.RcodeServerFailure, Size: size(kept)}},
	} {
		t.Run(name, func(t *testing.T) {
			w := new(watcher)
			_, cfg := serve(t, w, &handler{do: tc.do, level: tc.level})
			for _, network := range []string{"udp", "tcp"} {
				testutil.Exchange(t, network, addressOf(cfg), kept.Copy())
				want := tc.want
				want.Client, want.Identity = local, "who is at 127.0.0.1"
				testutil.Equal(t, network, []queryinfo.Answer{want}, w.take(t, 1))
			}
		})
	}
}

// TestObserverOfSilence: a query that no server answers is reported, and so is one of the agent's own.
func TestObserverOfSilence(t *testing.T) {
	w := new(watcher)
	s, cfg := serve(t, w, &handler{do: func(w dns.ResponseWriter, q *dns.Msg) {
		if !strings.HasPrefix(q.Question[0].Name, "silent.") {
			answer(w, q)
		}
	}})
	write(t, dialUDP(t, addressOf(cfg)), testutil.Packed(t, question("silent.example.org.", dns.TypeA)))
	if got := w.take(t, 1); len(got) != 1 || got[0].Size != 0 || got[0].Identity == nil {
		t.Errorf("observed %+v", got)
	}
	testutil.Must(t, s.Query(t.Context(), "cluster.local"))
	if got := w.take(t, 1); len(got) != 1 || got[0].Client.IsValid() || got[0].Identity != nil || got[0].Size == 0 {
		t.Errorf("observed %+v", got)
	}
}

// TestFirst: the handler before the chain answers what it knows, over either protocol; the chain answers the rest on the same
// connection, and the observer is informed of each once.
func TestFirst(t *testing.T) {
	w, first := new(watcher), &shelf{name: "known.example.org."}
	s, cfg := serve(t, w, &handler{do: answer, first: first})
	for _, network := range []string{"udp", "tcp"} {
		conn := dial(t, network, addressOf(cfg))
		var rcodes []int
		names := []string{"known", "other", "known", "known", "other"}
		for _, name := range names {
			q := question(name+".example.org.", dns.TypeA)
			m := testutil.RoundTrip(t, conn, q)
			if m.Id != q.Id || m.Question[0].Name != q.Question[0].Name {
				t.Errorf("%s %s: %v", network, name, m)
			}
			rcodes = append(rcodes, m.Rcode)
		}
		testutil.Equal(t, network+": codes", []int{3, 0, 3, 3, 0}, rcodes)
		seen := w.take(t, len(names))
		levels := map[queryinfo.Level]int{}
		for _, a := range seen {
			levels[a.Level]++
			if a.Identity != "who is at 127.0.0.1" || a.Size < msg.HeaderSize || (a.Rcode == dns.RcodeNameError) != (a.Level == queryinfo.Stale) {
				t.Errorf("%s: observed %+v", network, a)
			}
		}
		if len(seen) != len(names) || levels[queryinfo.Stale] != 3 {
			t.Errorf("%s: observed %+v", network, seen)
		}
		first.mu.Lock()
		if last := first.asked; last.TCP != (network == "tcp") || last.Client != netip.MustParseAddr("127.0.0.1") || last.Identity != "who is at 127.0.0.1" {
			t.Errorf("%s: asked by %+v", network, last)
		}
		first.mu.Unlock()
	}
	testutil.WaitFor("nothing is in work", func() bool { return inWork(s) == 0 })
}

// TestFirstSaysNothing: if the fast path handles a UDP query without an answer, the client gets none, the chain does not get the query, and
// it is reported once. Over TCP the chain answers, because the client would wait.
func TestFirstSaysNothing(t *testing.T) {
	w, mute := new(watcher), mute{}
	_, cfg := serve(t, w, &handler{do: answer, first: mute})
	conn := dial(t, "udp", addressOf(cfg))
	for _, name := range []string{"mute.", "known."} {
		testutil.Must(t, conn.WriteMsg(question(name, dns.TypeA)))
	}
	if m, err := conn.ReadMsg(); err != nil || m.Question[0].Name != "known." {
		t.Errorf("%v, %v", m, err)
	}
	seen := w.take(t, 2)
	if len(seen) != 2 || seen[0].Size*seen[1].Size != 0 || seen[0].Size+seen[1].Size == 0 {
		t.Errorf("observed %+v", seen)
	}
	if m := testutil.Exchange(t, "tcp", addressOf(cfg), question("mute.", dns.TypeA)); len(m.Answer) != 1 {
		t.Errorf("over TCP: %v", m)
	}
}

// mute takes queries for one name and answers nothing.
type mute struct{}

func (mute) Answer(b []byte, q *fastpath.Query) ([]byte, queryinfo.Level, bool) {
	return b, queryinfo.Miss, bytes.Contains(q.Wire, []byte("mute"))
}

// TestFirstDrains: a connection that only the handler before the chain answers ends with its server, and right after an answer.
func TestFirstDrains(t *testing.T) { firstDrains(t, 0) }

func firstDrains(t *testing.T, end time.Duration) {
	t.Helper()
	_, s, conn := newHeld(t, nil, end)
	for id := range uint16(3) {
		send(t, conn, id, "kept.example.org.")
		wantIDs(t, conn, id)
	}
	testutil.Must(t, s.Stop())
	wantEnd(t, conn)
}

type nobodyCounts struct{}

func (nobodyCounts) Identify(netip.Addr) any { return nil }
func (nobodyCounts) Record(queryinfo.Answer) {}

// nowhere is a ResponseWriter that discards answers.
type nowhere struct{ dns.ResponseWriter }

func (*nowhere) Write(b []byte) (int, error) { return len(b), nil }
