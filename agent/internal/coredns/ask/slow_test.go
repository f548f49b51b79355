package ask

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/miekg/dns"
)

// slowly answers names that begin with a time after it, and others at once.
func slowly(q *dns.Msg, stream bool) *dns.Msg {
	label, _, _ := strings.Cut(q.Question[0].Name, ".")
	if d, err := time.ParseDuration(label); err == nil {
		<-time.After(d)
	}
	return says("upstream")(q, stream)
}

// limitOf reports whether what a question came to is this agent's limit only.
func (b *block) limitOf(name string) (limit bool, took time.Duration) {
	b.t.Helper()
	began := time.Now()
	rec := dnstest.NewRecorder(&client{})
	_, err := b.ServeDNS(context.Background(), rec, new(dns.Msg).SetQuestion(name, dns.TypeTXT))
	var l interface{ Limit() bool }
	if rec.Msg != nil || err == nil {
		b.t.Errorf("%s: answered", name)
	}
	return errors.As(err, &l) && l.Limit(), time.Since(began)
}

// A name whose own servers take their time is answered, on a node that asks nothing else; so it is where all names are slow,
// at the latest when the client asks again.
func TestSlowNames(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, stream := range []bool{false, true} {
		block := func(answer func(*dns.Msg, bool) *dns.Msg) *block {
			return serve(t, func(a *Ask) { a.stream = stream }, newFake(t, onBoth, answer).addr)
		}
		for _, d := range []time.Duration{2400 * time.Millisecond, 4 * time.Second} {
			b := block(slowly)
			wg.Go(func() {
				b.want("udp", fmt.Sprintf("%dms.example.", d.Milliseconds()), "upstream", d, d+time.Second)
			})
		}
		tooSlow := block(slowly)
		wg.Go(func() {
			if limit, took := tooSlow.limitOf("6s.example."); !limit || took < budget || took > budget+time.Second {
				t.Errorf("too slow, TCP %v: our limit %v, after %s", stream, limit, took)
			}
			if tooSlow.list[0].health.changes.Load() != 0 {
				t.Errorf("a name was held against the server:\n%s", tooSlow.log)
			}
		})
		all := block(after(2400*time.Millisecond, says("upstream")))
		wg.Go(func() {
			if limit, took := all.limitOf("a.example."); !limit || took > silentEnd+time.Second {
				t.Errorf("all slow, TCP %v: our limit %v, after %s", stream, limit, took)
			}
			all.want("udp", "a.example.", "upstream", 2400*time.Millisecond, 4*time.Second)
		})
	}
}

// A server that is dead for long has failed by itself; one that refuses has, too.
func TestFailuresOfTheirOwn(t *testing.T) {
	t.Parallel()
	b := serve(t, nil, newFake(t, onBoth, silence).addr)
	eventually(t, "it is known as dead", func() bool { b.ask("udp", "a.example."); return b.list[0].dead() })
	if limit, took := b.limitOf("b.example."); limit || took > silentEnd+time.Second {
		t.Errorf("our limit %v, after %s", limit, took)
	}
	b = serve(t, nil, nobody(t))
	if limit, _ := b.limitOf("a.example."); limit {
		t.Error("what is refused is held to be our limit")
	}
}

// A name is slow and its answer is lost: it is asked once more without a share of hedges, as its client would have done.
func TestAskedAgain(t *testing.T) {
	t.Parallel()
	f := newFake(t, onUDP, silence)
	b := serve(t, nil, f.addr)
	for b.Ask.servers.hedges.spend() { // others have used them up
	}
	f.behave(func(q *dns.Msg, stream bool) *dns.Msg {
		if q.Question[0].Qtype != dns.TypeNS && f.asked[0].Load() == 1 {
			return nil
		}
		return says("upstream")(q, stream)
	})
	b.want("udp", "a.example.", "upstream", silentEnd-hedgeAgain, silentEnd+time.Second)
}
