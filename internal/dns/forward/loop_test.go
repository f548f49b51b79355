package forward

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// back passes its queries to a block, like a resolver that forwards to this node. Without a block it answers itself.
type back struct {
	to    atomic.Pointer[block]
	loops atomic.Int64
}

func (k *back) answer(q *dns.Msg, stream bool) *dns.Msg {
	b := k.to.Load()
	if b == nil {
		return answersAs("resolver")(q, stream)
	}
	k.loops.Add(1)
	q = q.Copy()
	q.Question[0].Name = strings.ToUpper(q.Question[0].Name) // some do, against forgery
	w := &kept{}
	rcode, err := b.ServeDNS(context.Background(), w, q)
	if w.msg != nil {
		m := w.msg.Copy()
		m.Id = q.Id
		return m
	}
	_ = err
	return new(dns.Msg).SetRcode(q, rcode)
}

type kept struct {
	client
	msg *dns.Msg
}

func (k *kept) WriteMsg(m *dns.Msg) error { k.msg = m; return nil }

func TestLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, others := range map[string]bool{"the only server": false, "another beside it": true} {
			func(t testing.TB) {
				k := new(back)
				looping := newFake(t, onBoth, k.answer)
				servers := []string{looping.addr}
				if others {
					servers = append(servers, newFake(t, onBoth, answersAs("other")).addr)
				}
				b := serve(t, nil, servers...)
				log := b.log
				k.to.Store(b)
				if !b.findLoops(t.Context()) {
					t.Fatal("not found")
				}
				got, took := b.ask("udp", "a.example.")
				if others && got != "other" || !others && !strings.Contains(got, "leads back to this node") || took > quick {
					t.Errorf("%s after %s", got, took)
				}
				testutil.Equal(t, "queries to the looping server", 0, looping.questions())
				for _, want := range []string{"level=ERROR", "upstream leads back to this node and is not used", "server=" + looping.addr, "name another server under upstreams"} {
					if !strings.Contains(log.String(), want) {
						t.Errorf("the log lacks %q:\n%s", want, log)
					}
				}
				faults := strings.Join(b.Block.servers.Faults(), "\n")
				if !strings.Contains(faults, looping.addr+" forwards names in . to this node,") {
					t.Errorf("faults: %s", faults)
				}
				if st := statusOf(b, looping.addr); len(st.Loops) != 1 || st.Loops[0] != "." {
					t.Errorf("status: %+v", st)
				}
				b.findLoops(t.Context())
				testutil.Equal(t, "errors logged", 1, strings.Count(log.String(), "level=ERROR"))
				if !others {
					looping.behave(silence)
					if !b.findLoops(t.Context()) {
						t.Error("a server that says nothing has shown that its loop is gone")
					}
					looping.behave(k.answer)
				}
				k.to.Store(nil) // repaired
				if b.findLoops(t.Context()) {
					t.Error("still there")
				}
				b.want("udp", "b.example.", "resolver", 0, quick)
				if !strings.Contains(log.String(), "no longer leads back to this node") {
					t.Errorf("the end is not said:\n%s", log)
				}
			}(named{t, name})
		}
	})
}

// The watch finds a loop by itself soon after the start.
func TestLoopAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := new(back)
		looping := newFake(t, onBoth, k.answer)
		b := serve(t, nil, looping.addr)
		k.to.Store(b)
		eventually(t, "the loop is found", func() bool { return b.loops[0].Load() })
	})
}

// Queries of other programs do not count as the agent's own, and a silent server is no loop.
func TestNoLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, onBoth, answersAs("good"))
		b := serve(t, nil, f.addr)
		q := new(dns.Msg).SetQuestion("a.example.", loopType)
		w := &kept{}
		if rcode, err := b.ServeDNS(t.Context(), w, q); err != nil || rcode != dns.RcodeSuccess || w.msg == nil {
			t.Errorf("a client's question of this type: %d, %v", rcode, err)
		}
		if b.findLoops(t.Context()) {
			t.Error("a loop was found")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		f.behave(silence)
		if b.findLoops(ctx) {
			t.Error("silence is no loop")
		}
	})
}

func TestNonceNames(t *testing.T) {
	a, b := nonceIn("."), nonceIn("cluster.local.")
	if a == b || dns.CountLabel(a) != 2 || !strings.HasSuffix(b, ".cluster.local.") || dns.CountLabel(b) != 3 {
		t.Errorf("%s, %s", a, b)
	}
	var ss Servers
	back := new(atomic.Bool)
	ss.nonces.Store(a, back)
	if ss.isNonce("x."+a) || ss.isNonce(b) || back.Load() || !ss.isNonce(strings.ToUpper(a)) || !back.Load() {
		t.Error("seen wrongly")
	}
}

func statusOf(b *block, addr string) Status {
	for _, s := range b.Block.servers.Status() {
		if s.Server == addr {
			return s
		}
	}
	return Status{}
}
