package server_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	mdns "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/queryinfo"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestHitsAreCountedAlike sends the same queries to the fast path and through the chain: each of CoreDNS's counters and histograms grows
// equally, except for durations.
func TestHitsAreCountedAlike(t *testing.T) {
	p := newPair(t, pairCorefile)
	var questions [][]byte
	for _, name := range []string{"web.shop.svc.cluster.local.", "gone.example.org.", "1.0.0.10.in-addr.arpa.", "sick.example.org."} {
		for _, qtype := range []uint16{mdns.TypeA, mdns.TypeAAAA, mdns.TypePTR, mdns.TypeCAA} {
			for _, do := range []bool{false, true} {
				m := question(name, qtype)
				m.SetEdns0(1232, do)
				questions = append(questions, testutil.Packed(t, m))
			}
		}
	}
	for _, m := range questions {
		p.slow(m, false) // so that it is kept
	}
	grow := func(ask func(m []byte, tcp bool)) map[string]float64 {
		before := coreDNSCounts(t)
		for _, m := range questions {
			ask(m, false)
			ask(m, true)
		}
		after := coreDNSCounts(t)
		maps.DeleteFunc(after, func(k string, v float64) bool { return v == before[k] })
		for k := range after {
			after[k] -= before[k]
		}
		return after
	}
	slow := grow(func(m []byte, tcp bool) { p.slow(m, tcp) })
	fast := grow(func(m []byte, tcp bool) {
		if _, ok := p.fast(m, tcp); !ok {
			t.Errorf("no hit: %x", m)
		}
	})
	if diff := cmp.Diff(slow, fast); diff != "" || len(slow) < 20 {
		t.Errorf("counted otherwise (-chain +before), %d series:\n%s", len(slow), diff)
	}
}

// coreDNSCounts returns the counters and histograms of CoreDNS's registry by their labels; of durations only the number.
func coreDNSCounts(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	testutil.Must(t, err)
	out := map[string]float64{}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "coredns_") {
			continue
		}
		for _, m := range f.GetMetric() {
			key := f.GetName() + fmt.Sprint(labels(m))
			if c := m.GetCounter(); c != nil {
				out[key] = c.GetValue()
			}
			if h := m.GetHistogram(); h != nil {
				out[key+" count"] = float64(h.GetSampleCount())
				if !strings.Contains(key, "duration") {
					out[key+" sum"] = h.GetSampleSum()
				}
			}
		}
	}
	return out
}

func labels(m *dto.Metric) (out []string) {
	for _, l := range m.GetLabel() {
		out = append(out, l.GetName()+"="+l.GetValue())
	}
	return out
}

// TestHitTTL queries a name in each second of its entry's TTL: the reply's TTL is at most the remaining one, and an expired entry is no hit
// (RFC 1035, section 3.2.1; RFC 2181, section 8).
func TestHitTTL(t *testing.T) {
	for _, name := range []string{"web.shop.svc.cluster.local.", "gone.svc.cluster.local.", "alias.svc.cluster.local."} {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, strings.Replace(pairCorefile, "prefetch 3 1m 20%", "", 1))
			m := testutil.Packed(t, question(name, mdns.TypeA))
			p.slow(m, false)
			before := uint32(worldTTL)
			for second := range uint32(worldTTL + 3) {
				b, ok := p.fast(m, false)
				if ok != (second < worldTTL) {
					t.Fatalf("%s after %d s: a hit: %t", name, second, ok)
				}
				if ok {
					_, ttls := settled(t, b)
					for _, ttl := range ttls {
						if ttl == 0 || ttl > worldTTL-second || ttl > before {
							t.Errorf("%s after %d s: TTLs %v", name, second, ttls)
						}
					}
					before = ttls[0]
				}
				time.Sleep(time.Second)
			}
		})
	}
}

// TestHitsRotate: addresses take turns over the fast path and the chain, with and without EDNS, whatever is queried between, and each reply
// begins with the next one. In a block without rotate, all replies begin with the same.
func TestHitsRotate(t *testing.T) {
	p := newPair(t, pairCorefile)
	for name, want := range map[string]map[string]int{"many-3.svc.cluster.local.": {"10.0.0.1": 4, "10.0.0.2": 4, "10.0.0.3": 4}, "many-3.example.org.": {"10.0.0.1": 12}} {
		m := question(name, mdns.TypeA)
		p.slow(testutil.Packed(t, m), false)
		counts := map[string]int{}
		for i := range 12 {
			if i == 6 {
				m.SetEdns0(1232, false)
			}
			var b []byte
			ok := true
			if i%2 == 0 {
				b = p.slow(testutil.Packed(t, m), false)
			} else {
				b, ok = p.fast(testutil.Packed(t, m), false)
			}
			p.slow(testutil.Packed(t, question(name, mdns.TypeAAAA)), false)
			var r mdns.Msg
			if err := r.Unpack(b); err != nil || !ok {
				t.Fatal(ok, err)
			}
			counts[r.Answer[0].(*mdns.A).A.String()]++
		}
		testutil.Equal(t, name+": first of the answers", want, counts)
	}
}

// TestHitsLeaveRefreshes: a query for a popular entry that is about to expire goes through the chain, which refreshes the entry; then it is
// a hit again.
func TestHitsLeaveRefreshes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, pairCorefile)
		m := testutil.Packed(t, question("web.shop.svc.cluster.local.", mdns.TypeA))
		p.slow(m, false)
		for range 5 {
			if _, ok := p.fast(m, false); !ok {
				t.Fatal("no hit")
			}
			time.Sleep(50 * time.Second)
		}
		// 50 of 300 s are left, and there were five queries.
		if _, ok := p.fast(m, false); ok {
			t.Error("a hit, although it is to be fetched again")
		}
		before := byFamily(coreDNSCounts(t))
		p.slow(m, false)
		synctest.Wait()
		after := byFamily(coreDNSCounts(t))
		for _, name := range []string{"dns_requests_total", "dns_responses_total", "cache_requests_total", "cache_hits_total", "cache_prefetch_total"} {
			testutil.Equal(t, name+" of the query and its refresh", 1, after[name]-before[name])
		}
		b, ok := p.fast(m, false)
		if !ok {
			t.Fatal("no hit after the refresh")
		}
		_, ttls := settled(t, b)
		testutil.Equal(t, "TTL after the refresh", worldTTL, ttls[0])
	})
}

// TestSlowZones: a block with a plugin that must see each query has no hits on the fast path; other blocks have hits. A plugin that changes
// or reads answers gets the chain's hits as messages.
func TestSlowZones(t *testing.T) {
	for _, directive := range []string{"log", "acl {\n allow net 10.0.0.0/8\n }", "rewrite name a.b c.d", "dns64", "loadbalance", "local",
		"errors", "debug", "pprof 127.0.0.1:0", "bufsize 1000", "", "hosts /dev/null {\n fallthrough\n }", "header {\n response set ra\n }", "limit 100", "cancel 4s"} {
		t.Run(directive, func(t *testing.T) {
			text := "slow.example {\n cache 3600\n ask\n " + directive + "\n}\n. {\n cache 3600\n ask\n}\n"
			p := newPair(t, text)
			hits := func(name string) bool {
				m := testutil.Packed(t, question(name, mdns.TypeA))
				p.slow(m, false)
				return p.same(t, name, m, false)
			}
			name, _, _ := strings.Cut(directive, " ")
			want := !slices.Contains([]string{"log", "acl", "rewrite", "dns64", "loadbalance", "local"}, name)
			testutil.Equal(t, "a hit", want, hits("a.slow.example."))
			p.slow(testutil.Packed(t, question("a.slow.example.", mdns.TypeA)), false)
			want = slices.Contains([]string{"log", "rewrite", "dns64", "loadbalance"}, name)
			if p.level != queryinfo.Hit || p.message != want {
				t.Errorf("the chain's answer of level %d is a message: %t, want %t", p.level, p.message, want)
			}
			if !hits("a.fast.example.") {
				t.Error("the neighbour has no hits")
			}
		})
	}
}

// TestHitsByZone: the longest zone gets the query; if it has no cache there is no hit, even if a shorter zone has the answer.
func TestHitsByZone(t *testing.T) {
	p := newPair(t, ". {\n cache 3600\n ask\n}\nexample.org {\n ask\n}\ncached.example.org {\n cache 3600\n ask\n}\npart.example {\n cache 3600 deep.part.example\n ask\n}\n")
	for name, want := range map[string]bool{"example.com.": true, "example.org.": false, "a.example.org.": false, "notexample.org.": true,
		"cached.example.org.": true, "A.CACHED.Example.org.": true, "uncached.example.org.": false, "org.": true, ".": true,
		"deep.part.example.": false, "part.example.": false} {
		m := testutil.Packed(t, question(name, mdns.TypeA))
		p.slow(m, false)
		testutil.Equal(t, name+": a hit", want, p.same(t, name, m, false))
	}
}

// TestNoAllocationOfHits: a hit allocates nothing, even if it is observed, counted, rotated and has an OPT record.
func TestNoAllocationOfHits(t *testing.T) { synctest.Test(t, noAllocationOfHits) }

func noAllocationOfHits(t *testing.T) {
	p := newPair(t, pairCorefile)
	b := make([]byte, 0, 4096)
	for _, name := range []string{"web.shop.svc.cluster.local.", "many-20.svc.cluster.local.", "gone.example.org.", "alias.example.org."} {
		m := question(name, mdns.TypeA)
		m.SetEdns0(1232, false)
		wire := testutil.Packed(t, m)
		p.slow(wire, false)
		q := &fastpath.Query{Wire: wire, Client: netip.MustParseAddr("10.244.1.7"), Received: time.Now(), Identity: "a pod"}
		if allocs := testing.AllocsPerRun(1000, func() {
			if _, _, ok := p.hits.Answer(b, q); !ok {
				t.Fatal("no hit")
			}
		}); allocs != 0 {
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
}

func BenchmarkHits(b *testing.B) {
	p := newPair(b, pairCorefile)
	var questions [][]byte
	for i := range 160 {
		m := question(fmt.Sprintf("svc-%d.default.svc.cluster.local.", i), mdns.TypeA)
		questions = append(questions, testutil.Packed(b, m))
		p.slow(questions[i], false)
	}
	b.Run("before the chain", func(b *testing.B) {
		q := &fastpath.Query{Client: netip.MustParseAddr("10.244.1.7"), Received: time.Now()}
		out := make([]byte, 0, 4096)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			q.Wire = questions[i%len(questions)]
			binary.BigEndian.PutUint16(q.Wire, uint16(i))
			if _, _, ok := p.hits.Answer(out, q); !ok {
				b.Fatal("no hit")
			}
		}
	})
	b.Run("chain", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if p.slow(questions[i%len(questions)], false) == nil {
				b.Fatal("no answer")
			}
		}
	})
}

// byFamily sums counters by name, without coredns_ and without labels.
func byFamily(counts map[string]float64) map[string]float64 {
	out := map[string]float64{}
	for k, v := range counts {
		name, rest, _ := strings.Cut(strings.TrimPrefix(k, "coredns_"), "[")
		if strings.HasSuffix(rest, " sum") {
			continue
		}
		if strings.HasSuffix(rest, " count") {
			name += " count"
		}
		out[name] += v
	}
	return out
}
