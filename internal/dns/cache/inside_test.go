package cache

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/offload/entries"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

// fixture is a cache before an upstream that the test plays.
type fixture struct {
	t        *testing.T
	cache    *Cache
	metrics  *Metrics
	registry *prometheus.Registry
	asked    atomic.Int64
	answer   answerer
}

type answerer = func(w dns.ResponseWriter, r *dns.Msg) (int, error)

func newFixture(t *testing.T, block string) *fixture {
	t.Helper()
	return fixtureOf(t, block, answers.NewStore(0), nil)
}

func fixtureOf(t *testing.T, block string, store *answers.Store, offloader *entries.Offloader) *fixture {
	t.Helper()
	f := &fixture{t: t, registry: prometheus.NewRegistry()}
	f.metrics = NewMetrics(store, f.registry)
	c := caddy.NewTestController("dns", block)
	c.ServerBlockKeys = []string{"."}
	testutil.Must(t, Setup(store, f.metrics, offloader)(c))
	h := dnsserver.GetConfig(c).Plugin[0](plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		f.asked.Add(1)
		return f.answer(w, r)
	}))
	f.cache = h.(*Cache)
	return f
}

// writer keeps the last message.
type writer struct {
	test.ResponseWriter
	msg *dns.Msg
}

func (w *writer) WriteMsg(m *dns.Msg) error {
	w.msg = m
	return nil
}
func (w *writer) Write(b []byte) (int, error) {
	w.msg = new(dns.Msg)
	return len(b), w.msg.Unpack(b)
}

// ask returns code, records and TTL as text.
func (f *fixture) ask(name string) string {
	f.t.Helper()
	r := new(dns.Msg)
	r.SetQuestion(name, dns.TypeA)
	w := new(writer)
	code, err := f.cache.ServeDNS(context.Background(), request.NewScrubWriter(r, w), r)
	if w.msg == nil {
		return fmt.Sprintf("%s unwritten, %v", dns.RcodeToString[code], err)
	}
	out := dns.RcodeToString[w.msg.Rcode]
	for _, rr := range w.msg.Answer {
		if a, ok := rr.(*dns.A); ok {
			out += fmt.Sprintf(" %s %d", a.A, a.Hdr.Ttl)
		}
	}
	return out
}

func (f *fixture) want(name, want string) {
	f.t.Helper()
	testutil.Equal(f.t, name, want, f.ask(name))
	synctest.Wait()
}

// address answers every query with one address.
func address(ip string, ttl uint32) answerer {
	return func(w dns.ResponseWriter, r *dns.Msg) (int, error) {
		m := new(dns.Msg).SetReply(r)
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: ttl}, A: net.ParseIP(ip)}}
		return 0, w.WriteMsg(m)
	}
}

// denied answers everything with a code and no record.
func denied(rcode int, soa bool) answerer {
	return func(w dns.ResponseWriter, r *dns.Msg) (int, error) {
		m := new(dns.Msg).SetRcode(r, rcode)
		if soa {
			m.Ns = []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 5}, Ns: "ns.", Mbox: "h.", Minttl: 5}}
		}
		return rcode, w.WriteMsg(m)
	}
}

// fails answers nothing.
func fails(err error) answerer {
	return func(dns.ResponseWriter, *dns.Msg) (int, error) { return dns.RcodeServerFailure, err }
}

// late answers after a time.
func late(by time.Duration, answer answerer) answerer {
	return func(w dns.ResponseWriter, r *dns.Msg) (int, error) {
		<-time.After(by)
		return answer(w, r)
	}
}

func silent(by time.Duration) answerer { return late(by, fails(errors.New("i/o timeout"))) }

// TestDownUpstream: when an upstream is silent, the first few clients wait for it, then none does; when it is back, every client has
// fresh answers at once, although each name's own recheck would be half a minute.
func TestDownUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "cache {\n serve_stale 1h verify 500ms 30s 30s\n}")
		f.answer = address("192.0.2.1", 10)
		const names = 50
		name := func(i int) string { return fmt.Sprintf("n%d.example.", i) }
		for i := range names {
			f.want(name(i), "NOERROR 192.0.2.1 10")
		}
		f.answer = silent(2 * time.Second)
		<-time.After(15 * time.Second)
		waited := 0
		for i := range names {
			begun := time.Now()
			f.want(name(i), "NOERROR 192.0.2.1 30")
			switch d := time.Since(begun); {
			case d > 500*time.Millisecond:
				t.Errorf("waited for %v", d)
			case d > 0:
				waited++
			}
		}
		if waited < 1 || waited > 8 {
			t.Errorf("%d of %d waited for an upstream that is down", waited, names)
		}
		f.want("new.example.", "SERVFAIL unwritten, i/o timeout")
		<-time.After(5 * time.Second)
		f.answer = address("192.0.2.2", 60)
		for i := range names { // each of them notices that the upstream is back, or finds it noticed
			f.ask(name(i))
			synctest.Wait()
			<-time.After(20 * time.Millisecond)
		}
		for i := range names {
			f.ask(name(i))
			synctest.Wait()
		}
		for i := range names {
			if got := f.ask(name(i)); !strings.HasPrefix(got, "NOERROR 192.0.2.2 ") {
				t.Fatalf("%s after the upstream is back: %s", name(i), got)
			}
		}
		<-time.After(time.Minute)
	})
}

// TestAsksItself: a plugin behind the cache that queries the same name by the same way must not wait for itself.
func TestAsksItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "cache")
		depth := 0
		f.cache.next = plugin.HandlerFunc(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			if depth++; depth == 1 {
				q := r.Copy()
				return f.cache.ServeDNS(ctx, w, q)
			}
			return address("192.0.2.1", 60)(w, r)
		})
		begun := time.Now()
		f.want("a.example.", "NOERROR 192.0.2.1 60")
		if d := time.Since(begun); d > 0 {
			t.Errorf("it waited for itself for %v", d)
		}
	})
}

// TestPanicInTheBackground: a panic during a refresh does not end the process, the entry is still served, and no flight is left.
func TestPanicInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "cache {\n prefetch 1 1m 50%\n}")
		f.answer = address("192.0.2.1", 10)
		f.want("a.example.", "NOERROR 192.0.2.1 10")
		f.answer = func(dns.ResponseWriter, *dns.Msg) (int, error) { panic("a plugin's bug") }
		<-time.After(6 * time.Second)
		f.want("a.example.", "NOERROR 192.0.2.1 4")
		<-time.After(2 * time.Second)
		f.answer = address("192.0.2.2", 10)
		f.want("a.example.", "NOERROR 192.0.2.1 2")
		f.want("a.example.", "NOERROR 192.0.2.2 10")
		testutil.Equal(t, "flights left", 0, len(f.cache.flights.under))
	})
}

// TestScope: only what the answers depend on makes another scope. The last resort does not; another server does, unless answers_of is set.
func TestScope(t *testing.T) {
	scope := func(cache, key string, chain ...string) uint64 {
		c := caddy.NewTestController("dns", "cache "+cache)
		c.ServerBlockKeys = []string{key}
		p, err := parse(c)
		testutil.Must(t, err)
		blocks, err := caddyfile.Parse("Corefile", strings.NewReader(". {\n"+strings.Join(chain, "\n")+"\n}\n"), nil)
		testutil.Must(t, err)
		var s surroundings
		for _, directive := range chain {
			name, _, _ := strings.Cut(directive, " ")
			next, servers := read(blocks[0].Tokens[name])
			s.behind, s.servers = append(s.behind, next), append(s.servers, servers...)
		}
		return p.scope(c.ServerBlockKeys, s)
	}
	const forward, named = "forward . 10.0.0.1", "{\n answers_of cluster\n}"
	base, ask := scope("", ".", forward), scope("", ".", "ask 10.0.0.1 {\n tcp\n last_resort 10.0.0.9\n mark 1\n}")
	one := scope(named, ".", "ask 10.0.0.1 {\n tcp\n}")
	for name, pair := range map[string][2]uint64{
		"capacity":              {base, scope("{\n success 2000\n}", ".", forward)},
		"stale":                 {base, scope("{\n serve_stale\n prefetch 2\n hold_denials 3s\n}", ".", forward)},
		"another last resort":   {ask, scope("", ".", "ask 10.0.0.1 {\n tcp\n last_resort 10.0.0.8 10.0.0.7\n}")},
		"no last resort":        {ask, scope("", ".", "ask 10.0.0.1 {\n tcp\n}")},
		"other words":           {ask, scope("", ".", "ask 10.0.0.1 {\n holds example.org\n}")},
		"no words":              {ask, scope("", ".", "ask 10.0.0.1")},
		"named, another server": {one, scope(named, ".", "ask 10.0.0.1 10.0.0.2 {\n tcp\n last_resort 10.0.0.3\n}")},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s makes another scope", name)
		}
	}
	seen := map[uint64]string{}
	for name, id := range map[string]uint64{
		"base":                 base,
		"another upstream":     scope("", ".", "forward . 10.0.0.2"),
		"one more upstream":    scope("", ".", "forward . 10.0.0.1 10.0.0.2"),
		"words cut otherwise":  scope("", ".", `forward ". 10.0.0.1"`),
		"a plugin before it":   scope("", ".", "hosts", forward),
		"another zone":         scope("", "example.org", forward),
		"a TTL":                scope("30", ".", forward),
		"a least TTL":          scope("{\n success 1024 3600 0\n}", ".", forward),
		"denials are not kept": scope("{\n disable denial\n}", ".", forward),
		"ask":                  ask,
		"ask, another server":  scope("", ".", "ask 10.0.0.2 {\n tcp\n}"),
		"ask, one more server": scope("", ".", "ask 10.0.0.1 10.0.0.2 {\n tcp\n}"),
		"ask, named":           one,
	} {
		if other, ok := seen[id]; ok {
			t.Errorf("%s has the scope of %s", name, other)
		}
		seen[id] = name
	}
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "cache {\n serve_stale 1h immediate\n prefetch 1 1m 50%\n}")
		f.metrics.add(f.cache)
		f.answer = address("192.0.2.1", 10)
		f.want("a.example.", "NOERROR 192.0.2.1 10") // miss
		f.want("a.example.", "NOERROR 192.0.2.1 10") // hit
		<-time.After(6 * time.Second)
		f.want("a.example.", "NOERROR 192.0.2.1 4") // hit, prefetch
		<-time.After(11 * time.Second)
		f.want("a.example.", "NOERROR 192.0.2.1 30") // hit, stale, refreshed
		f.answer = denied(dns.RcodeNameError, true)
		f.want("nx.example.", "NXDOMAIN") // miss
		f.want("nx.example.", "NXDOMAIN") // hit
		f.answer = func(w dns.ResponseWriter, r *dns.Msg) (int, error) {
			q := r.Copy()
			q.Question[0].Name = "other.example."
			return address("192.0.2.1", 10)(w, q)
		}
		f.ask("odd.example.") // miss, dropped
		golden.Check(t, "metrics.txt", f.gather())
		f.metrics.remove(f.cache)
		if got := f.gather(); strings.Contains(got, "coredns_cache_entries") {
			t.Errorf("series of a block that serves no more:\n%s", got)
		}
	})
}

// gather prints CoreDNS's metrics that are not zero, and checks the others' form.
func (f *fixture) gather() string {
	f.t.Helper()
	families, err := f.registry.Gather()
	testutil.Must(f.t, err)
	var out strings.Builder
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "coredns_") {
			problems, err := promlint.NewWithMetricFamilies([]*dto.MetricFamily{family}).Lint()
			if err != nil || len(problems) > 0 {
				f.t.Error(problems, err)
			}
			continue
		}
		if family.GetName() == "coredns_cache_evictions_total" {
			continue
		}
		_, err := expfmt.MetricFamilyToText(&out, family)
		testutil.Must(f.t, err)
	}
	return out.String()
}

// TestLeavesPluginsTheirMessages: the cache does not change a plugin's message, because it may be the plugin's own zone data.
func TestLeavesPluginsTheirMessages(t *testing.T) {
	f := newFixture(t, "cache 10")
	own := plain("a.example.")
	own.Response = true
	own.Answer = []dns.RR{record("a.example. 300 IN A 192.0.2.1")}
	own.Extra = append(make([]dns.RR, 0, 4), &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}})
	before := own.Copy()
	f.answer = func(w dns.ResponseWriter, _ *dns.Msg) (int, error) { return 0, w.WriteMsg(own) }
	testutil.Equal(t, "the answer", "NOERROR 192.0.2.1 10", f.ask("a.example."))
	own.Rcode, before.Rcode = dns.RcodeRefused, dns.RcodeRefused // passed on, not kept
	testutil.Equal(t, "the answer", "NOERROR 192.0.2.1 10", f.ask("a.example."))
	testutil.Equal(t, "the plugin's message", before.String(), own.String())
}

// TestInZones compares with CoreDNS's own rule, which is slower.
func TestInZones(t *testing.T) {
	c := &Cache{policy: policy{zones: []string{"example.org.", "a.example.net."}}}
	for name, want := range map[string]bool{
		"example.org.": true, "www.EXAMPLE.org.": true, "a.example.net.": true, "x.y.a.example.net.": true, `a\.b.example.org.`: true,
		"myexample.org.": false, `my\.example.org.`: false, "example.net.": false, "ba.example.net.": false, "org.": false, ".": false,
	} {
		if got := c.inZones(name); got != want || got != (plugin.Zones(c.zones).Matches(name) != "") {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
	}
	if root := (&Cache{policy: policy{zones: []string{"."}}}); !root.inZones(".") || !root.inZones("example.org.") {
		t.Error("the root zone has not all names")
	}
}
