package limit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/cache"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

// writer is the ResponseWriter of a client with its own address. It keeps the answer.
type writer struct {
	test.ResponseWriter
	addr net.Addr
	got  *dns.Msg
}

func (w *writer) RemoteAddr() net.Addr { return w.addr }

func (w *writer) WriteMsg(m *dns.Msg) error {
	w.got = m
	return nil
}

func pod(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, byte(n >> 8), byte(n)}) }

func client(n int) *writer {
	return &writer{addr: &net.UDPAddr{IP: pod(n).AsSlice(), Port: 40000}}
}

// slow is an upstream that answers once let is closed.
type slow struct {
	mu    sync.Mutex
	asked int
	let   chan struct{}
}

func (s *slow) Name() string { return "slow" }

func (s *slow) ServeDNS(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	s.mu.Lock()
	s.asked++
	s.mu.Unlock()
	<-s.let
	m := new(dns.Msg).SetReply(r)
	m.Answer = []dns.RR{test.A(r.Question[0].Name + " 5 IN A 192.0.2.1")}
	return dns.RcodeSuccess, w.WriteMsg(m)
}

func question(format string, args ...any) *dns.Msg {
	return new(dns.Msg).SetQuestion(dns.Fqdn(fmt.Sprintf(format, args...)), dns.TypeA)
}

// TestLimitShrinks checks that queries in flight stay when the limit is lowered, and that none is admitted above it.
func TestLimitShrinks(t *testing.T) {
	g := New(10)
	for i := range 10 {
		if g.enter(pod(i)) != admitted {
			t.Fatalf("%d was shed", i)
		}
	}
	g.SetLimit(4)
	for i := range 7 {
		if why := g.enter(pod(99)); why != full {
			t.Fatalf("let in with %d in flight of 4 (%d)", g.slots.Used(), why)
		}
		g.leave(pod(i))
	}
	if g.enter(pod(99)) != admitted {
		t.Error("shed below the limit")
	}
}

// TestQuietPodIsServedInAFlood sends a flood of one pod and a few queries of another through the plugin while the upstream
// hangs.
func TestQuietPodIsServedInAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := &slow{let: make(chan struct{})}
		g := New(100)
		a := &Limit{next: up, gate: g}
		var wg sync.WaitGroup
		ask := func(from int, name string) *int {
			code := new(int)
			wg.Go(func() { *code, _ = a.ServeDNS(t.Context(), client(from), question("%s", name)) })
			return code
		}
		var flood []*int
		for i := range 2000 {
			flood = append(flood, ask(1, fmt.Sprintf("r%d.example.org", i)))
		}
		synctest.Wait()
		var quiet []*int
		for i := range 20 {
			quiet = append(quiet, ask(2+i%4, fmt.Sprintf("q%d.example.org", i)))
		}
		synctest.Wait()
		close(up.let)
		wg.Wait()
		passed := 0
		for _, code := range flood {
			if *code == dns.RcodeSuccess {
				passed++
			} else if *code != dns.RcodeServerFailure {
				t.Errorf("rcode %d", *code)
			}
		}
		testutil.Equal(t, "queries of the flood that were forwarded: half of the limit", 50, passed)
		for i, code := range quiet {
			testutil.Equal(t, fmt.Sprintf("code of question %d of a quiet pod", i), dns.RcodeSuccess, *code)
		}
		if up.asked != 70 || g.slots.Used() != 0 {
			t.Errorf("%d asked, %d in flight at the end", up.asked, g.slots.Used())
		}
	})
}

// TestPlaceIsGivenBack checks that a slot is released if the next plugin fails or panics.
func TestPlaceIsGivenBack(t *testing.T) {
	g := New(4)
	for name, next := range map[string]plugin.HandlerFunc{
		"error": func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) {
			return dns.RcodeServerFailure, errors.New("no upstream")
		},
		"panic": func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) { panic("a plugin's bug") },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				_ = recover()
				if g.slots.Used() != 0 {
					t.Errorf("%d in flight", g.slots.Used())
				}
			}()
			_, _ = (&Limit{next: next, gate: g}).ServeDNS(t.Context(), client(1), question("x.example"))
		})
	}
}

// TestShedIsNotCached puts CoreDNS's own cache in front: after a pod's query was shed, the next pod's query for the same name is answered.
func TestShedIsNotCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no time passes: a failure that was kept would still be there
		up := &slow{let: make(chan struct{})}
		close(up.let)
		g := New(1)
		ca := cache.New()
		ca.Zones = []string{"."}
		ca.Next = &Limit{next: up, gate: g}
		ask := func(c *writer) int {
			t.Helper()
			code, err := ca.ServeDNS(t.Context(), c, question("a.example.org"))
			testutil.Must(t, err)
			return code
		}
		_ = g.enter(pod(9)) // the only place
		first := client(1)
		if code := ask(first); code != dns.RcodeServerFailure || first.got != nil {
			t.Fatalf("rcode %d, written %v; want SERVFAIL and nothing written", code, first.got)
		}
		g.leave(pod(9))
		second := client(2)
		if code := ask(second); code != dns.RcodeSuccess || second.got == nil || len(second.got.Answer) != 1 {
			t.Fatalf("the next pod got rcode %d, %v: the failure was kept", code, second.got)
		}
	})
}

func TestSetup(t *testing.T) {
	for _, tc := range []struct {
		input string
		limit int
		want  string
	}{
		{"limit", DefaultLimit, ""},
		{"limit 7", 7, ""},
		{"limit 0", 0, `limit "0"`},
		{"limit -1", 0, `limit "-1"`},
		{"limit x", 0, `limit "x"`},
		{"limit 1 2", 0, "Wrong argument count"},
		{"limit {\n x\n}", 0, "unknown property"},
		{"limit\nadmit", 0, "once"},
	} {
		g := New(3)
		c := caddy.NewTestController("dns", tc.input)
		err := Setup(g)(c)
		if tc.want != "" {
			testutil.WantError(t, err, tc.want, tc.input)
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", tc.input, err)
			continue
		}
		if limit, err := parse(caddy.NewTestController("dns", tc.input)); err != nil || limit != tc.limit {
			t.Errorf("%q: limit %d, %v; want %d", tc.input, limit, err, tc.limit)
		}
		testutil.Equal(t, tc.input+": the limit before the start", 3, g.slots.Size())
		testutil.Equal(t, tc.input+": plugins", 1, len(dnsserver.GetConfig(c).Plugin))
	}
}

func TestMetrics(t *testing.T) {
	g := New(2)
	for range 3 {
		g.enter(pod(1))
	}
	g.enter(pod(2))
	g.enter(pod(3))
	const want = `
# HELP neardns_misses_in_flight Queries in flight to upstreams.
# TYPE neardns_misses_in_flight gauge
neardns_misses_in_flight 2
# HELP neardns_misses_in_flight_limit The most queries in flight to upstreams at one time (limits.misses).
# TYPE neardns_misses_in_flight_limit gauge
neardns_misses_in_flight_limit 2
# HELP neardns_misses_shed_total Misses that were not forwarded, by reason: full (the limit was reached) or share (the client had its fair share in flight).
# TYPE neardns_misses_shed_total counter
neardns_misses_shed_total{reason="full"} 1
neardns_misses_shed_total{reason="share"} 2
`
	testutil.Must(t, promtest.CollectAndCompare(g.Collector(), strings.NewReader(want)))
	if problems, err := promtest.CollectAndLint(g.Collector()); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}

// TestNoAllocation: shedding a query allocates nothing, because a flood may cause it 20,000 times a second.
func TestNoAllocation(t *testing.T) {
	g := New(1)
	g.enter(pod(9))
	a := &Limit{gate: g}
	w, q := client(1), question("x.example")
	if n := testing.AllocsPerRun(100, func() { _, _ = a.ServeDNS(t.Context(), w, q) }); n > 0 {
		t.Errorf("%v allocations for a question that is shed", n)
	}
}
