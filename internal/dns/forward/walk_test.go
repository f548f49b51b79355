package forward

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

var walkSeed = flag.Uint64("seed", 1, "seed of TestWalk")

// walk counts what the servers do for the client's query at hand.
type walk struct {
	mu                     sync.Mutex
	name                   string
	queries, answers, sent int // copies of the query; good answers to it; all that the servers sent, also to health checks
}

// begin returns the name of the next query.
func (w *walk) begin(name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.name, w.queries, w.answers, w.sent = name, 0, 0, 0
	return name
}

// change makes a server behave in another way from now on.
func (w *walk) change(f *fake, r *rand.Rand) {
	way := []func(*dns.Msg, bool) *dns.Msg{answersAs("good"), answersAs("good"), silence, silence, code(dns.RcodeServerFailure),
		code(dns.RcodeRefused), cutOverUDP, cutOverBoth}[r.IntN(8)]
	delay := time.Duration(0)
	if r.IntN(3) == 0 {
		delay = time.Duration(r.IntN(6000))*time.Millisecond + 7*time.Microsecond // never at the same time as a timer
	}
	f.behave(func(q *dns.Msg, stream bool) *dns.Msg {
		w.mu.Lock()
		if q.Question[0].Name == w.name {
			w.queries++
		}
		w.mu.Unlock()
		if delay > 0 {
			<-time.After(delay)
		}
		m := way(q, stream)
		w.mu.Lock()
		defer w.mu.Unlock()
		if m != nil {
			w.sent++
		}
		if isGood(m) && q.Question[0].Name == w.name {
			w.answers++
		}
		return m
	})
	f.serve([]int{0, onUDP, onTCP, onBoth, onBoth, onBoth, onBoth, onBoth}[r.IntN(8)])
	if r.IntN(8) == 0 {
		f.host.set(func() { f.host.accept = func(*end) {} }) // closes each stream at once
	}
}

// cutOverUDP answers over TCP, and over UDP with a truncated answer.
func cutOverUDP(q *dns.Msg, stream bool) *dns.Msg {
	m := answersAs("good")(q, stream)
	m.Truncated = !stream
	return m
}

func cutOverBoth(q *dns.Msg, _ bool) *dns.Msg { return cutOverUDP(q, false) }

func isGood(m *dns.Msg) bool { return m != nil && len(m.Answer) > 0 && !m.Truncated }

// TestWalk sends queries to servers that change their behaviour at random, one to five and perhaps a last resort, and checks what must hold
// for each query, whatever the servers did before.
func TestWalk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(*walkSeed, 3)) //nolint:gosec // a repeatable walk
		failing, unanswered, most := 0, 0, 0
		for round := range 200 {
			w, fakes := new(walk), []*fake{}
			add := func(n int) (addrs []string) {
				for range n {
					f := newFake(t, onBoth, silence)
					w.change(f, r)
					fakes, addrs = append(fakes, f), append(addrs, f.addr)
				}
				return addrs
			}
			servers, resorts := add(1+r.IntN(5)), add(r.IntN(2))
			b := serve(t, func(a *Block) { a.stream, a.resorts = r.IntN(2) == 0, specs(t, resorts...) }, servers...)
			for i := range 20 {
				if r.IntN(2) == 0 {
					w.change(fakes[r.IntN(len(fakes))], r)
				}
				time.Sleep(time.Duration(r.IntN(2000))*time.Millisecond + 3*time.Microsecond) // never with a health check
				q, m, took, err := b.walkOnce(w.begin(fmt.Sprintf("n%d-%d.example.", round, i)), r.IntN(3) == 0)
				w.check(t, q, m, err, took)
				most = max(most, q.next)
				if q.probing {
					failing++
				}
				if m == nil {
					unanswered++
				}
			}
			b.stop()
		}
		if t.Logf("4,000 queries: %d with all servers failing, %d unanswered, at most %d tries", failing, unanswered, most); failing == 0 ||
			unanswered == 0 || most < 4 {
			t.Error("the walk does not come everywhere")
		}
	})
}

// walkOnce forwards a query, and returns it in its last state.
func (b *block) walkOnce(name string, overTCP bool) (q *hedgedQuery, m *dns.Msg, took time.Duration, err error) {
	now := time.Now()
	q = b.plan(context.Background(), new(dns.Msg).SetQuestion(name, dns.TypeTXT), overTCP)
	for _, s := range b.list[b.first:] {
		if !s.health.failing.Load() && !hasServer(q.tries[:q.count], s) {
			b.t.Errorf("%s: no try for the last resort, which is healthy", name)
		}
	}
	m, err = q.run(context.Background())
	return q, m, time.Since(now), err
}

// check holds a query that has ended to the rules.
func (w *walk) check(t *testing.T, q *hedgedQuery, m *dns.Msg, err error, took time.Duration) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for rule, kept := range map[string]bool{
		"a query has an answer or an error":                             (m == nil) == (err != nil),
		"a query ends within its budget":                                took <= budget,
		"silence ends a query sooner":                                   w.sent > 0 || took <= silentEnd,
		"a query has at most four tries":                                w.queries <= 4,
		"the client gets a good answer if a server has sent one":        w.answers == 0 || isGood(m),
		"a client over TCP gets no truncated answer":                    m == nil || !q.overTCP || !m.Truncated,
		"the answer is to the client's query":                           m == nil || m.Question[0].Name == w.name,
		"a query ends early only with an answer or with all tries over": m != nil || took >= silentEnd || q.next == q.count,
	} {
		if !kept {
			t.Errorf("seed %d, %s: breaks %q: %d tries of %d, %d queries, %d answers, %v after %s", *walkSeed, w.name, rule, q.next,
				q.count, w.queries, w.answers, err, took)
		}
	}
}
