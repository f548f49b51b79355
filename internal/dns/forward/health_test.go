package forward

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/neardns/neardns/pkg/testutil"
)

// A server that answers some queries and fails those that matter is avoided. Now and then a client's query tries it, which costs that
// client nothing, and a good answer brings it back, although it still fails others, as a validating resolver does.
func TestRealAnswersOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := newFake(t, onBoth, answersAs("one")), newFake(t, onBoth, answersAs("two"))
		fails := func(q *dns.Msg, stream bool) *dns.Msg {
			if strings.HasSuffix(q.Question[0].Name, ".example.") {
				return code(dns.RcodeServerFailure)(q, stream)
			}
			return answersAs("one")(q, stream)
		}
		b := serve(t, nil, one.addr, two.addr)
		b.want("udp", "a.example.", "one", 0, quick)
		one.behave(after(hedgeAfter/2, answersAs("one")))
		go b.ask("udp", "early.test.") // its answer comes after the failures and ends nothing
		synctest.Wait()
		one.behave(fails)
		for i := range failLimit {
			b.want("udp", fmt.Sprintf("n%d.example.", i), "two", 0, quick)
		}
		before := one.questions()
		for i := range 1000 { // 20 s
			b.want("udp", fmt.Sprintf("m%d.example.", i), "two", 0, quick)
			<-time.After(20 * time.Millisecond)
		}
		probes := b.list[0].counts.probes.Load()
		if n := one.questions() - before; !b.list[0].health.failing.Load() || uint64(n) != probes || probes < 3 || probes > 7 {
			t.Errorf("%d queries while it fails, %d counted", n, probes)
		}
		if st := statusOf(b, one.addr); !st.Failing || st.Reason != "SERVFAIL" || st.Since.IsZero() {
			t.Errorf("status %+v", st)
		}
		eventually(t, "it is back", func() bool { who, _ := b.ask("udp", "fine.test."); return who == "one" })
		b.want("udp", "fine.test.", "one", 0, quick)
		log := b.log.String()
		if strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, "reason=SERVFAIL") ||
			strings.Count(log, "upstream answers well again") != 1 {
			t.Errorf("log:\n%s", log)
		}
		testutil.Equal(t, "changes of health", 2, b.list[0].health.changes.Load())
	})
}

// A server that is always slower than another does not recover by answering health checks slowly; it is used if it is the only one left.
func TestSlowDoesNotRecover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := newFake(t, onBoth, after(600*time.Millisecond, answersAs("slow")))
		quickOne := newFake(t, onBoth, answersAs("quick"))
		b := serve(t, nil, slow.addr, quickOne.addr)
		for i := range failLimit {
			b.want("udp", fmt.Sprintf("n%d.example.", i), "quick", hedgeAfter, hedgeAfter)
		}
		if !b.list[0].health.failing.Load() {
			t.Errorf("it is asked first:\n%s", b.log)
		}
		eventually(t, "two probes", func() bool { return b.list[0].counts.probes.Load() >= 2 })
		if !b.list[0].health.failing.Load() {
			t.Errorf("taken back:\n%s", b.log)
		}
		b.want("udp", "x.example.", "quick", 0, quick)
		quickOne.stop()
		b.want("udp", "y.example.", "slow", 600*time.Millisecond, silentEnd)
	})
}

// Hedges are bounded while a server is slow for all queries.
func TestHedgesAreBounded(t *testing.T) {
	var h hedges
	granted := 0
	for h.spend() {
		granted++
	}
	testutil.Equal(t, "hedges at the start", maxHedges, granted)
	for range hedgeCost {
		h.earn()
	}
	if !h.spend() || h.spend() {
		t.Errorf("want one for %d questions", hedgeCost)
	}
	for range 10 * hedgeCost * maxHedges {
		h.earn()
	}
	for granted = 0; h.spend(); granted++ {
	}
	testutil.Equal(t, "hedges saved up", 2*maxHedges, granted)
}

// Many queries at once to a server that falls silent: each is answered by the other one, although hedges are bounded.
func TestManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := newFake(t, onBoth, silence), newFake(t, onBoth, answersAs("two"))
		b := serve(t, nil, one.addr, two.addr)
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() { b.want("udp", fmt.Sprintf("n%d.example.", i), "two", 0, 1500*time.Millisecond) })
		}
		wg.Wait()
	})
}

// Two blocks and a reload share a server and its health.
func TestServersAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, onBoth, code(dns.RcodeServerFailure))
		other := newFake(t, onBoth, answersAs("other"))
		ss := newServers(slog.New(slog.DiscardHandler))
		one := &Block{servers: ss, zones: []string{"cluster.local."}, specs: specs(t, f.addr, other.addr)}
		one.start()
		b := &block{one, t, new(testutil.Output)}
		for i := range failLimit {
			b.want("udp", fmt.Sprintf("n%d.cluster.local.", i), "other", 0, quick)
		}
		two := &Block{servers: ss, zones: []string{"."}, specs: specs(t, f.addr)}
		two.start()
		if two.list[0] != one.list[0] || !two.list[0].health.failing.Load() {
			t.Error("not shared")
		}
		zones := map[string][]string{}
		for _, st := range ss.Status() {
			zones[st.Server] = st.Zones
		}
		want := map[string][]string{one.list[0].name: {".", "cluster.local."}, one.list[1].name: {"cluster.local."}}
		testutil.Equal(t, "the servers' zones", want, zones)
		one.stop()
		one.stop() // harmless
		if st := ss.Status(); len(st) != 1 || st[0].Zones[0] != "." {
			t.Errorf("status %+v", st)
		}
		two.stop()
		if st := ss.Status(); len(st) != 0 {
			t.Errorf("status %+v", st)
		}
		if got, _ := b.ask("udp", "late.cluster.local."); got == "" { // a query that was on its way through the reload
			t.Error("no answer")
		}
		testutil.Equal(t, "lines kept after the end", 0, one.list[1].udp.size())
	})
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, onBoth, code(dns.RcodeServerFailure))
		last := newFake(t, onBoth, answersAs("last"))
		b := serve(t, func(a *Block) { a.resorts = specs(t, last.addr) }, f.addr)
		for i := range failLimit {
			b.want("udp", fmt.Sprintf("n%d.example.", i), "last", 0, quick)
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(b.Block.servers.Collector())
		if problems, err := promtest.GatherAndLint(registry); err != nil || len(problems) > 0 {
			t.Errorf("promlint: %v, %v", problems, err)
		}
		got := series(t, registry)
		for key, want := range map[string]float64{
			"neardns_upstream_requests_total servfail " + f.addr:    failLimit,
			"neardns_upstream_requests_total answered " + last.addr: failLimit,
			"neardns_upstream_requests_total silent " + last.addr:   0,
			"neardns_upstream_healthy " + f.addr:                    0,
			"neardns_upstream_healthy " + last.addr:                 1,
			"neardns_upstream_health_changes_total " + f.addr:       1,
			"neardns_upstream_last_resort_total .":                  failLimit,
			"neardns_upstream_hedges_total":                         0,
			"neardns_upstream_loop " + f.addr + " .":                0,
		} {
			if v, ok := got[key]; !ok || v != want {
				t.Errorf("%s: %v %v, want %v", key, v, ok, want)
			}
		}
		found := false
		for key := range series(t, prometheus.DefaultGatherer) {
			found = found || strings.HasPrefix(key, "coredns_proxy_request_duration_seconds ") && strings.HasSuffix(key, " "+last.addr)
		}
		if !found {
			t.Error("CoreDNS's histogram lacks the answers")
		}
	})
}

// series returns the values of counters and gauges by their name and their labels' values, and 0 for others.
func series(t testing.TB, registry prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	testutil.Must(t, err)
	out := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			key := family.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			out[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return out
}

// A single upstream that is slow for all names gets little more than one query for each client's query, and each is answered.
func TestSlowForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const questions = 150 // no more than fit the server's receive buffer at once
		const neutral = 4     // health checks, which show that the server is not dead
		slow := newFake(t, onBoth, after(1200*time.Millisecond, answersAs("slow")))
		b := serve(t, nil, slow.addr)
		var wg sync.WaitGroup
		for i := range questions {
			wg.Go(func() { b.want("udp", fmt.Sprintf("n%d.example.", i), "slow", 1200*time.Millisecond, 2*time.Second) })
		}
		wg.Wait()
		if most := int64(questions + maxHedges + questions/hedgeCost + neutral); slow.questions() > most {
			t.Errorf("asked %d times for %d questions, want at most %d", slow.questions(), questions, most)
		}
		if b.list[0].health.failing.Load() {
			t.Error("it is taken for dead")
		}
	})
}
