package server_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mdns "github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/queryinfo"
	"github.com/neardns/neardns/internal/dns/searchpath"
)

// TestCountedOnce asks at every level there is, over UDP and TCP, with the fast path and without. Each question is told of once, and is one
// request, one response, one duration and two sizes by CoreDNS's account, whoever answers it. What a walk asks of the server itself is
// counted there, too, as CoreDNS counts what its plugins ask, and is told nobody.
func TestCountedOnce(t *testing.T) {
	for _, fast := range []bool{true, false} {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(fmt.Sprintf("fast path %t, %s", fast, network), func(t *testing.T) { countedOnce(t, fast, network) })
		}
	}
}

func countedOnce(t *testing.T, fast bool, network string) {
	var sick atomic.Bool
	up := newUpstream(t, func(q *mdns.Msg) *mdns.Msg {
		m := address("10.0.0.1")(q)
		for _, rr := range m.Answer {
			rr.Header().Ttl = 3000 // what is looked at last is a hit still, and not fetched ahead, however busy the machine is
		}
		switch label, _, _ := strings.Cut(q.Question[0].Name, "."); {
		case sick.Load(), label == "sick":
			return new(mdns.Msg).SetRcode(q, mdns.RcodeServerFailure)
		case label == "gone", strings.Count(q.Question[0].Name, ".") > 3:
			m.Rcode, m.Answer = mdns.RcodeNameError, nil
			m.Ns = []mdns.RR{&mdns.SOA{Hdr: mdns.RR_Header{Name: "cluster.local.", Rrtype: mdns.TypeSOA, Class: mdns.ClassINET, Ttl: 30}, Ns: "ns.", Mbox: "m.", Minttl: 30}}
		case label == "short":
			m.Answer[0].Header().Ttl = 1
		case label == "many":
			for range 3 {
				m.Answer = append(m.Answer, mdns.Copy(m.Answer[0]))
			}
		}
		return m
	})
	w, cfg := new(watcher), config(t, up)
	cfg.FastPath, cfg.Cache.ServeStale = fast, time.Hour
	s := observed(slog.New(slog.DiscardHandler), w)
	if err := s.Start(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	defer s.Stop() //nolint:errcheck // at the end
	count := func(name string) (queryinfo.Answer, map[string]float64) {
		before := byFamily(coreDNSCounts(t))
		ask(t, network, addressOf(cfg), question(name, mdns.TypeA))
		told := w.next(t)
		after := byFamily(coreDNSCounts(t))
		for k := range after {
			if after[k] -= before[k]; after[k] == 0 {
				delete(after, k)
			}
		}
		return told, after
	}
	requests := func(n float64) map[string]float64 {
		return map[string]float64{"dns_requests_total": n, "dns_responses_total": n, "dns_request_duration_seconds count": n,
			"dns_request_size_bytes count": n, "dns_response_size_bytes count": n}
	}
	check := func(what string, want, got map[string]float64) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	pod := searching{searchpath.NewSearch([]string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local"}, 5, false, "cluster.local")}
	for _, tc := range []struct {
		what, name string
		level      queryinfo.Level
		cache      map[string]float64 // of its counters
		who        any
		own        float64 // questions of a walk's
	}{
		{"miss", "a.example.org.", queryinfo.Miss, map[string]float64{"requests": 1, "misses": 1}, nil, 0},
		{"hit", "a.example.org.", queryinfo.Hit, map[string]float64{"requests": 1, "hits": 1}, nil, 0},
		{"hit in another case", "A.Example.ORG.", queryinfo.Hit, map[string]float64{"requests": 1, "hits": 1}, nil, 0},
		{"denial", "gone.example.org.", queryinfo.Miss, map[string]float64{"requests": 1, "misses": 1}, nil, 0},
		{"kept denial", "gone.example.org.", queryinfo.Hit, map[string]float64{"requests": 1, "hits": 1}, nil, 0},
		{"several addresses", "many.example.org.", queryinfo.Miss, map[string]float64{"requests": 1, "misses": 1}, nil, 0},
		{"rotated", "many.example.org.", queryinfo.Hit, map[string]float64{"requests": 1, "hits": 1}, nil, 0},
		{"failure", "sick.example.org.", queryinfo.Miss, map[string]float64{"requests": 1, "misses": 1}, nil, 0},
		{"the first of a walk, completed", "www.example.com.shop.svc.cluster.local.", queryinfo.Hit, nil, pod, 8},
		{"the same again", "www.example.com.shop.svc.cluster.local.", queryinfo.Hit, nil, pod, 1},
		{"a pod's own name", "a.example.org.", queryinfo.Hit, map[string]float64{"requests": 1, "hits": 1}, pod, 0},
	} {
		w.set(tc.who)
		told, got := count(tc.name)
		if told.Level != tc.level {
			t.Errorf("%s: told of at level %d", tc.what, told.Level)
		}
		cache := map[string]float64{}
		for k, v := range got {
			if name, is := strings.CutPrefix(k, "cache_"); is && !strings.HasPrefix(name, "evictions") {
				cache[strings.TrimSuffix(name, "_total")] = v
			}
			if !strings.HasPrefix(k, "dns_") {
				delete(got, k)
			}
		}
		if check(tc.what, requests(1+tc.own), got); tc.cache != nil { // a walk asks the cache more than once
			check(tc.what+", cache", tc.cache, cache)
		}
	}
	w.set(nil)

	// The prober's questions are no client's.
	if told, got := count("n1.probe.neardns.invalid."); len(got) > 0 || told.Level != queryinfo.Miss {
		t.Errorf("the prober's question: told %+v, counted %v", told, got)
	}

	count("short.example.org.")
	sick.Store(true)
	waitFor(t, "a stale answer", func() bool {
		told, got := count("short.example.org.")
		stale := told.Level == queryinfo.Stale
		if stale != (got["cache_served_stale_total"] == 1) || got["cache_requests_total"] != 1 || got["dns_requests_total"] != 1 || got["dns_responses_total"] != 1 {
			t.Errorf("told %+v, counted %v", told, got)
		}
		return stale
	})
}

// byFamily sums counters up, without what their names begin with and without labels.
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
