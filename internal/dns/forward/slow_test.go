package forward

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// slowly answers names that begin with a time after it, and others at once.
func slowly(q *dns.Msg, stream bool) *dns.Msg {
	label, _, _ := strings.Cut(q.Question[0].Name, ".")
	if d, err := time.ParseDuration(label); err == nil {
		<-time.After(d)
	}
	return answersAs("upstream")(q, stream)
}

// limitOf reports whether a query failed only by this agent's limit, and after what time.
func (b *block) limitOf(name string) (limit bool, took time.Duration) {
	b.t.Helper()
	began := time.Now()
	limit = b.limited(name)
	return limit, time.Since(began)
}

// limited is limitOf without the time.
func (b *block) limited(name string) bool {
	b.t.Helper()
	m, _, err := b.exchange(context.Background(), &client{}, name)
	var l interface{ Limit() bool }
	if m != nil || err == nil {
		b.t.Errorf("%s: answered", name)
	}
	return errors.As(err, &l) && l.Limit()
}

// A name whose own servers are slow is answered, on a node without other queries. If all names are slow, it is answered at the latest when
// the client retries.
func TestSlowNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
		defer wg.Wait()
		for _, stream := range []bool{false, true} {
			block := func(answer func(*dns.Msg, bool) *dns.Msg) *block {
				return serve(t, func(a *Block) { a.stream = stream }, newFake(t, onBoth, answer).addr)
			}
			for _, d := range []time.Duration{2400 * time.Millisecond, 4 * time.Second} {
				b := block(slowly)
				wg.Go(func() {
					b.want("udp", fmt.Sprintf("%dms.example.", d.Milliseconds()), "upstream", d, d)
				})
			}
			tooSlow := block(slowly)
			wg.Go(func() {
				if limit, took := tooSlow.limitOf("6s.example."); !limit || took != budget {
					t.Errorf("too slow, TCP %v: our limit %v, after %s", stream, limit, took)
				}
				if tooSlow.list[0].health.changes.Load() != 0 {
					t.Errorf("a name was held against the server:\n%s", tooSlow.log)
				}
			})
			all := block(after(2400*time.Millisecond, answersAs("upstream")))
			wg.Go(func() {
				if limit, took := all.limitOf("a.example."); !limit || took > silentEnd {
					t.Errorf("all slow, TCP %v: our limit %v, after %s", stream, limit, took)
				}
				all.want("udp", "a.example.", "upstream", 2400*time.Millisecond, 2400*time.Millisecond)
			})
		}
	})
}

// The failure of a server that has been dead for long is the server's own; so is a refusal.
func TestFailuresOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := serve(t, nil, newFake(t, onBoth, silence).addr)
		eventually(t, "it is known as dead", func() bool { b.ask("udp", "a.example."); return b.list[0].health.failing.Load() })
		if limit, took := b.limitOf("b.example."); limit || took > silentEnd {
			t.Errorf("our limit %v, after %s", limit, took)
		}
		b = serve(t, nil, closedPort(t))
		if limit, _ := b.limitOf("a.example."); limit {
			t.Error("what is refused is held to be our limit")
		}
	})
}

// A try without an answer counts as silent if its server sent nothing until the query failed, and as slow if only the answer is late.
func TestSilentOrSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, tc := range map[string]struct {
			server func(*dns.Msg, bool) *dns.Msg
			others bool // another upstream answers
			want   reason
		}{
			"a silent server":           {silence, false, reasonSilent},
			"a server with a slow name": {slowly, false, reasonSlow},
			"another one was faster":    {silence, true, reasonSlow},
		} {
			for _, stream := range []bool{false, true} {
				addrs := []string{newFake(t, onBoth, tc.server).addr}
				if tc.others {
					addrs = append(addrs, newFake(t, onBoth, answersAs("other")).addr)
				}
				b := serve(t, func(a *Block) { a.stream = stream }, addrs...)
				b.ask("udp", "6s.example.")
				for r := range reasons {
					if n := b.list[0].counts.results[r].Load(); (n > 0) != (r == tc.want) {
						t.Errorf("%s, TCP %v: %d tries are %s, want only %s", name, stream, n, r, tc.want)
					}
				}
			}
		}
	})
}

// A name is slow and its answer is lost: the query is sent once more without a hedge from the budget, as its client would have done.
func TestLostAnswerIsQueriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, onUDP, silence)
		b := serve(t, nil, f.addr)
		for b.Block.servers.hedges.spend() { // others have used them up
		}
		f.behave(func(q *dns.Msg, stream bool) *dns.Msg {
			if q.Question[0].Qtype != dns.TypeNS && f.asked[0].Load() == 1 {
				return nil
			}
			return answersAs("upstream")(q, stream)
		})
		b.want("udp", "a.example.", "upstream", silentEnd, silentEnd)
	})
}
