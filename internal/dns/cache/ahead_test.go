package cache

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/caddy"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/pkg/testutil"
)

const refreshes = "cache {\n success 20480 3600 0\n denial 1024 3600 0\n refresh 3 1m\n}"

// prefetches is a block of an operator, with CoreDNS's property.
const prefetches = "cache {\n success 1024 3600 0\n denial 1024 3600 0\n prefetch 3 1m 9%\n}"

// crowd sends queries for random names at random times.
type crowd struct {
	block  string // of the cache; "": refreshes
	names  int
	rate   float64 // of all names together, a second
	lasts  time.Duration
	change time.Duration        // how long until other names replace all names; 0: never
	burst  int                  // number of queries for the chosen name at the same time; 0: one
	leaves float64              // how far the share of hits may be below 0.99
	pick   func(*rand.Rand) int // chooses a name; nil: each as often as the others
	ttl    func(name int) uint32
	denied bool
	takes  time.Duration // how long the upstream takes for an answer; 0: a millisecond
	// shared: the upstream is a cache, which answers with the remaining TTL of its own entry.
	shared bool
}

// heard counts queries, clients that waited and upstream queries, in the second half of the time.
type heard struct{ questions, waited, upstream int }

// watched returns the number of watched names.
func (h *ahead) watched() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.due)
}

// ask sends the crowd's queries to a cache that refreshes, or to one that only lets answers expire, which is a map. The same seed always
// gives the same queries.
func (c crowd) ask(t *testing.T, refresh bool) (h heard) {
	t.Helper()
	if c.pick == nil {
		c.pick = func(chance *rand.Rand) int { return chance.IntN(c.names) }
	}
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		until := map[string]time.Time{} // by the cache behind ours
		fetch := func(name string) uint32 {
			n, _ := strconv.Atoi(name[1:strings.IndexByte(name, '.')])
			mu.Lock()
			ttl := c.ttl(n)
			if left := time.Until(until[name]); c.shared && left > 0 {
				ttl = uint32((left + time.Second - 1) / time.Second)
			} else if c.shared {
				until[name] = time.Now().Add(time.Duration(ttl) * time.Second)
			}
			mu.Unlock()
			time.Sleep(max(time.Millisecond, c.takes))
			return ttl
		}
		f := newFixture(t, cmp.Or(c.block, refreshes))
		f.answer = func(w dns.ResponseWriter, r *dns.Msg) (int, error) {
			m := new(dns.Msg).SetReply(r)
			head := dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: fetch(r.Question[0].Name)}
			if c.denied {
				m.Rcode, head.Name, head.Rrtype = dns.RcodeNameError, ".", dns.TypeSOA
				m.Ns = []dns.RR{&dns.SOA{Hdr: head, Ns: "ns.", Mbox: "h.", Minttl: head.Ttl}}
			} else {
				m.Answer = []dns.RR{&dns.A{Hdr: head, A: net.IPv4(192, 0, 2, 1)}}
			}
			return m.Rcode, w.WriteMsg(m)
		}
		ends := map[string]time.Time{}
		query := func(name string) {
			if refresh {
				_, _ = f.cache.ServeDNS(t.Context(), new(writer), new(dns.Msg).SetQuestion(name, dns.TypeA))
			} else if !time.Now().Before(ends[name]) {
				f.asked.Add(1)
				ttl := time.Duration(fetch(name)) * time.Second
				ends[name] = time.Now().Add(ttl)
			}
		}
		chance, begun, before := rand.New(rand.NewPCG(1, 2)), time.Now(), int64(0)
		for first := true; time.Since(begun) < c.lasts; {
			time.Sleep(time.Duration(chance.ExpFloat64() / c.rate * float64(time.Second)))
			turn := 0
			if c.change > 0 {
				turn = int(time.Since(begun) / c.change)
			}
			late := time.Since(begun) > c.lasts/2
			if late && first {
				first, before = false, f.asked.Load()
			}
			name := "n" + strconv.Itoa(c.pick(chance)) + ".t" + strconv.Itoa(turn) + ".example."
			for range max(c.burst, 1) {
				at := time.Now()
				query(name)
				if late {
					h.questions++
					if time.Since(at) > 0 {
						h.waited++
					}
				}
			}
		}
		h.upstream = int(f.asked.Load() - before)
		f.cache.ahead.end()
		time.Sleep(time.Second) // what is under way ends
	})
	return h
}

func always(ttl uint32) func(int) uint32 { return func(int) uint32 { return ttl } }

// TestRefreshKeepsHot: for names that are queried ten times or more in each TTL, 99 of 100 clients do not wait, and the upstream gets at
// most a tenth more queries than without refreshes. With prefetch and a hundred queries in each TTL, as good as none waits.
func TestRefreshKeepsHot(t *testing.T) {
	for name, c := range map[string]crowd{
		"denials of 5 s, 13 questions in each":    {names: 40, rate: 104, lasts: 2 * time.Minute, ttl: always(5), denied: true},
		"denials of 5 s, 50 questions in each":    {names: 20, rate: 200, lasts: time.Minute, ttl: always(5), denied: true},
		"answers of 30 s, 20 questions in each":   {names: 40, rate: 27, lasts: 10 * time.Minute, ttl: always(30)},
		"answers of 1 s, 30 questions in each":    {names: 10, rate: 300, lasts: 20 * time.Second, ttl: always(1)},
		"answers of 300 s, 20 questions in each":  {names: 40, rate: 2.7, lasts: 40 * time.Minute, ttl: always(300)},
		"answers of 30 s, of a slow upstream":     {names: 4, rate: 2.7, lasts: time.Hour, ttl: always(30), takes: 500 * time.Millisecond},
		"answers of 30 s, of a cache behind ours": {names: 20, rate: 30, lasts: 10 * time.Minute, ttl: always(30), shared: true},
		"the Services of W2 at 500 a second":      {names: 200, rate: 500, lasts: time.Minute, ttl: w2, denied: true, leaves: 0.005},
		"denials of 5 s, 1,000 questions in each": {names: 1, rate: 200, lasts: time.Minute, ttl: always(5), denied: true},
		"prefetch, denials of 1 s":                {block: prefetches, names: 2, rate: 200, lasts: time.Minute, ttl: always(1), denied: true, leaves: -0.009},
		"prefetch, answers of 2 s": {block: prefetches, names: 2, rate: 100, lasts: 2 * time.Minute,
			ttl: always(2), leaves: -0.009},
		"prefetch, denials of 5 s": {block: prefetches, names: 2, rate: 40, lasts: 4 * time.Minute,
			ttl: always(5), denied: true, leaves: -0.009},
		"prefetch, answers of 30 s":  {block: prefetches, names: 10, rate: 33, lasts: 20 * time.Minute, ttl: always(30), leaves: -0.009},
		"prefetch, denials of 300 s": {block: prefetches, names: 10, rate: 3.3, lasts: 200 * time.Minute, ttl: always(300), denied: true, leaves: -0.009},
	} {
		t.Run(name, func(t *testing.T) {
			alone, ours := c.ask(t, false), c.ask(t, true)
			hits := 1 - float64(ours.waited)/float64(ours.questions)
			cost := float64(ours.upstream) / float64(alone.upstream)
			t.Logf("hits %.4f (%.4f where answers expire), upstream %.3f", hits, 1-float64(alone.waited)/float64(alone.questions), cost)
			if least := 0.99 - c.leaves; hits < least {
				t.Errorf("%d of %d clients waited: %.4f did not, at least %.3f", ours.waited, ours.questions, hits, least)
			}
			if cost > 1.1 {
				t.Errorf("%d questions to the upstream, %d where answers expire: %.3f", ours.upstream, alone.upstream, cost)
			}
		})
	}
}

// w2 are the TTLs of the bench's workload W2: four of five names do not exist.
func w2(name int) uint32 {
	if name%5 == 0 {
		return 30
	}
	return 5
}

// The names of the bench's workload W3: half of the queries are W2's, half are for 10,000 other names by Zipf's law.
const w3Others = 10_000

func w3() func(*rand.Rand) int {
	sums := make([]float64, w3Others)
	sum := 0.0
	for k := range sums {
		sum += 1 / float64(k+1)
		sums[k] = sum
	}
	return func(chance *rand.Rand) int {
		if chance.IntN(2) == 0 {
			return chance.IntN(w2Names)
		}
		at, _ := slices.BinarySearch(sums, chance.Float64()*sum)
		return w2Names + at
	}
}

const w2Names = 200

func w3TTL(name int) uint32 {
	if name < w2Names {
		return w2(name)
	}
	return 5 + uint32(name)*2654435761>>8%296 // spread as by a hash
}

// TestRefreshIsBound: however clients query, the upstream gets at most 1.1 times the queries that it gets if answers expire, and those that
// the credit allows at once.
func TestRefreshIsBound(t *testing.T) {
	for name, c := range map[string]crowd{
		"names that live for one TTL":        {names: 20, rate: 100, lasts: 4 * time.Minute, change: 6 * time.Second, ttl: always(5)},
		"bursts, a TTL and more between":     {names: 20, rate: 2, lasts: 10 * time.Minute, burst: 20, ttl: always(5)},
		"three questions in each TTL":        {names: 50, rate: 30, lasts: 4 * time.Minute, ttl: always(5)},
		"five questions in each TTL":         {names: 50, rate: 50, lasts: 4 * time.Minute, ttl: always(5), denied: true},
		"eight questions in each TTL":        {names: 50, rate: 80, lasts: 4 * time.Minute, ttl: always(5)},
		"seldom":                             {names: 200, rate: 10, lasts: 10 * time.Minute, ttl: always(5)},
		"W3 at 500 a second":                 {names: w2Names + w3Others, rate: 500, lasts: 80 * time.Second, pick: w3(), ttl: w3TTL},
		"a cache behind ours, few questions": {names: 50, rate: 20, lasts: 10 * time.Minute, ttl: always(30), shared: true},
	} {
		t.Run(name, func(t *testing.T) {
			alone, ours := c.ask(t, false), c.ask(t, true)
			t.Logf("hits %.3f, %.3f where answers expire; upstream %.3f", 1-float64(ours.waited)/float64(ours.questions),
				1-float64(alone.waited)/float64(alone.questions), float64(ours.upstream)/float64(alone.upstream))
			if most := 1.1*float64(alone.upstream) + float64(maxCredit)/fetchCosts + float64(min(c.names, 200)); float64(ours.upstream) > most {
				t.Errorf("%d questions to the upstream, %d where answers expire: more than %.0f", ours.upstream, alone.upstream, most)
			}
		})
	}
}

// TestRefreshRests: no timer wakes the process for names that are queried seldom, or that are no longer queried.
func TestRefreshRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refreshes)
		f.answer = address("192.0.2.1", 10)
		watched := f.cache.ahead.watched
		for range 3 { // a miss and two hits
			f.ask("a.example.")
		}
		if watched() != 0 || f.cache.ahead.timer != nil {
			t.Error("a name that was asked for seldom is watched")
		}
		for range 100 {
			f.ask("a.example.")
			<-time.After(100 * time.Millisecond)
		}
		if watched() != 1 || f.asked.Load() != 2 {
			t.Errorf("%d watched, the upstream was asked %d times", watched(), f.asked.Load())
		}
		<-time.After(time.Minute)
		if watched() != 0 || f.asked.Load() != 2 {
			t.Errorf("nobody asks: %d watched, the upstream was asked %d times", watched(), f.asked.Load())
		}
	})
}

// TestRefreshWatchesNoMoreThanTheCacheHolds: hot names beyond the cache's capacity are fetched when they expire.
func TestRefreshWatchesNoMoreThanTheCacheHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refreshes)
		defer f.cache.ahead.end()
		f.answer = address("192.0.2.1", 1000)
		f.cache.capacity[answers.Success], f.cache.capacity[answers.Denial] = 3, 0
		for i := range 5 {
			for range 4 {
				f.ask(fmt.Sprintf("n%d.example.", i))
			}
		}
		testutil.Equal(t, "watched names", 3, f.cache.ahead.watched())
	})
}

// TestRefreshAsksAlike: a timer's query equals the client's in name, type, class, DO and CD.
func TestRefreshAsksAlike(t *testing.T) {
	for _, tc := range []struct {
		name   string
		qtype  uint16
		do, cd bool
	}{{"a.example.", dns.TypeA, false, false}, {"A.Example.", dns.TypeAAAA, true, false},
		{`b\.c\200.example.`, dns.TypeTXT, false, true}, {".", dns.TypeNS, true, true}} {
		r := new(dns.Msg).SetQuestion(tc.name, tc.qtype)
		r.CheckingDisabled = tc.cd
		if tc.do {
			r.SetEdns0(4096, true)
		}
		var a query
		if !a.read(r) {
			t.Fatal(tc.name)
		}
		m, err := new(dns.Msg).SetReply(r).Pack()
		testutil.Must(t, err)
		e, err := answers.NewEntry(&a.key, answers.Denial, m, 5)
		testutil.Must(t, err)
		got, again, ok := queryOf(e)
		if !ok || !bytes.Equal(got.key.Bytes(), a.key.Bytes()) || got.do != tc.do || got.cd != tc.cd || !got.rd {
			t.Errorf("%s: %t, %+v", tc.name, ok, got)
		}
		q := &fetch{query: *got, request: again}
		p := &fetch{query: a, request: r}
		want, have := p.upstreamQuery(), q.upstreamQuery()
		want.Id, have.Id = 0, 0
		want.IsEdns0().SetUDPSize(ednsSize)
		testutil.Equal(t, "the query, the client's wanted", want.String(), have.String())
	}
}

// TestRefreshOfEvicted: an entry that was removed from the store is not refreshed, even if a caller still has it.
func TestRefreshOfEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refreshes)
		defer f.cache.ahead.end()
		f.answer = address("192.0.2.1", 10)
		for until := time.Now().Add(9850 * time.Millisecond); time.Now().Before(until); <-time.After(50 * time.Millisecond) {
			f.ask("a.example.") // until shortly before it would be fetched
		}
		var a query
		a.read(new(dns.Msg).SetQuestion("a.example.", dns.TypeA))
		e, _ := f.cache.look(&a.key)
		f.cache.space.Remove(e)
		<-time.After(5 * time.Second)
		if f.asked.Load() != 1 || f.cache.ahead.watched() != 0 {
			t.Errorf("the upstream was asked %d times, %d are watched", f.asked.Load(), f.cache.ahead.watched())
		}
		runtime.KeepAlive(e)
	})
}

// TestRefreshTriesAgain: if an upstream no longer answers with the remaining TTL of its own entries, some of the next popular names
// (tryAgain) show it.
func TestRefreshTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, refreshes)
		f.answer = late(time.Millisecond, address("192.0.2.1", 1))
		h := &f.cache.ahead
		h.mu.Lock()
		h.cut = 2 * cutMany
		h.mu.Unlock()
		waits := func(turn int) (n int) { // of a name that is queried through ten TTLs
			name := fmt.Sprintf("n%d.example.", turn)
			for begun := time.Now(); time.Since(begun) < 10*time.Second; <-time.After(50 * time.Millisecond) {
				at := time.Now()
				f.ask(name)
				if time.Since(at) > 0 {
					n++
				}
			}
			<-time.After(3 * time.Second) // it is watched no more
			return n
		}
		for turn := range 10 * tryAgain {
			switch n := waits(turn); {
			case turn == 0 && n < 9:
				t.Errorf("%d clients waited for an answer that is not fetched early", n)
			case turn > 0 && n == 1:
				t.Logf("clients wait no more from name %d on", turn)
				h.mu.Lock()
				sure := h.cut < cutMany
				h.mu.Unlock()
				if sure {
					h.end()
					return
				}
			}
		}
		t.Error("names are never fetched early again")
		h.end()
	})
}

// TestRefreshAfterReload: a name that the old plugin chain watched is then watched by the new one only, also if the reload comes during a
// refresh. So only the first client waits.
func TestRefreshAfterReload(t *testing.T) {
	for name, reloaded := range map[string]func(f *fixture, since time.Duration) bool{
		"at some time":         func(_ *fixture, since time.Duration) bool { return since >= 5*time.Second },
		"while it is fetched":  func(f *fixture, _ time.Duration) bool { return f.asked.Load() == 2 },
		"after it was fetched": func(_ *fixture, since time.Duration) bool { return since >= 12*time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, refreshes)
				f.answer = late(50*time.Millisecond, address("192.0.2.1", 10))
				old, waited := f.cache, 0
				for begun := time.Now(); time.Since(begun) < 25*time.Second; <-time.After(20 * time.Millisecond) {
					if f.cache == old && reloaded(f, time.Since(begun)) {
						old.ahead.end()
						next := newCache(old.policy, old.store, old.space, old.metrics)
						next.next, f.cache = old.next, next
					}
					at := time.Now()
					f.ask("a.example.")
					if time.Since(at) > 0 {
						waited++
					}
				}
				if f.cache == old || old.ahead.watched() != 0 || f.cache.ahead.watched() != 1 {
					t.Errorf("the old chain watches %d, the new one %d", old.ahead.watched(), f.cache.ahead.watched())
				}
				if f.asked.Load() != 3 || waited != 1 {
					t.Errorf("the upstream was asked %d times in 25 s for an answer of 10 s, %d clients waited", f.asked.Load(), waited)
				}
				f.cache.ahead.end()
				<-time.After(time.Second) // what is under way ends
			})
		})
	}
}

// TestRefreshFails: a failing upstream does not get more queries for hot names, and clients get the earlier answers.
func TestRefreshFails(t *testing.T) {
	for name, wait := range map[string]time.Duration{"SERVFAIL": 0, "silent": 2 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				failing := denied(dns.RcodeServerFailure, false)
				if wait > 0 {
					failing = silent(wait)
				}
				f := newFixture(t, refreshes)
				defer f.cache.ahead.end()
				f.answer = address("192.0.2.1", 10)
				for i := range 99 {
					if i == 50 {
						f.answer = failing
					}
					if got := f.ask("a.example."); got[:len("NOERROR")] != "NOERROR" {
						t.Fatalf("%d ms: %s", i*100, got)
					}
					<-time.After(100 * time.Millisecond)
				}
				<-time.After(5 * time.Second)
				testutil.Equal(t, "upstream queries, one of them in vain", 2, f.asked.Load())
			})
		})
	}
}

// TestRefreshProperty checks how the property refresh is parsed, and that it excludes prefetch.
func TestRefreshProperty(t *testing.T) {
	for text, want := range map[string]string{
		"refresh 3":                   "",
		"refresh 3 30s":               "",
		"refresh 0":                   "",
		"refresh":                     "Wrong argument count",
		"refresh 3 1m 9%":             "Wrong argument count",
		"refresh x":                   `refresh "x": write a number of hits`,
		"refresh -1":                  `refresh "-1": write a number of hits`,
		"refresh 3 1x":                "refresh: time: unknown unit",
		"refresh 3\n prefetch 3":      "refresh and prefetch contradict each other",
		"prefetch 3 1m\n refresh 3":   "prefetch and refresh contradict each other",
		"prefetch 3\n prefetch 4 10s": "",
	} {
		p, err := parse(caddy.NewTestController("dns", "cache {\n "+text+"\n}"))
		switch {
		case want == "" && (err != nil || p.timed != strings.HasPrefix(text, "refresh")):
			t.Errorf("%q: %+v, %v", text, p, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: want %q, got %v", text, want, err)
		}
	}
}
