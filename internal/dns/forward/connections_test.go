package forward

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// All pooled sockets lead to an endpoint that is gone and sends no error, as with conntrack: the second try uses a new socket.
func TestSecondTryIsFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		known := map[*end]bool{} // sockets that carried a query, guarded by the host
		h := newHost(t)
		h.datagram = func(from *end, msg []byte) {
			q := new(dns.Msg)
			if q.Unpack(msg) != nil {
				return
			}
			if gone := known[from] && strings.HasPrefix(q.Question[0].Name, "after"); !gone {
				time.AfterFunc(30*time.Millisecond, func() { from.reply(answersAs("upstream")(q, false)) })
			}
			known[from] = true
		}
		b := serve(t, nil, h.addr)
		var asked sync.WaitGroup
		for j := range 8 { // at the same time, so that several sockets are kept
			asked.Go(func() { b.ask("udp", fmt.Sprintf("n%d.example.", j)) })
		}
		asked.Wait()
		if n := b.list[0].udp.size(); n != 8 {
			t.Fatalf("%d sockets are kept", n)
		}
		took := hedgeAfter + 30*time.Millisecond
		b.want("udp", "after.example.", "upstream", took, took)
	})
}

// A line that is too old, or was idle for too long, is not used again, whether it is taken from the pool or returned to it.
func TestOldLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b buffers
		now := time.Now()
		lineOf := func(idle, until time.Duration) *line {
			ours, theirs := net.Pipe()
			t.Cleanup(func() { theirs.Close() })
			return &line{conn: ours, idle: now.Add(idle), until: now.Add(until)}
		}
		closed := func(l *line) bool {
			_ = l.conn.SetReadDeadline(time.Now())
			_, err := l.conn.Read(make([]byte, 1))
			return errors.Is(err, io.ErrClosedPipe)
		}
		waited, aged, good := lineOf(-idleLimit-time.Second, time.Hour), lineOf(0, -time.Second), lineOf(0, time.Hour)
		p := pool{bufs: &b, lines: []*line{waited, aged, good}}
		if l := p.take(); l != good || !closed(waited) || !closed(aged) {
			t.Errorf("took the good one %t, closed %t, %t", l == good, closed(waited), closed(aged))
		}
		late := lineOf(0, -time.Second)
		if p.give(late); p.size() != 0 || !closed(late) {
			t.Errorf("%d lines wait, closed %t", p.size(), closed(late))
		}
		p.close()
		if p.give(good); p.size() != 0 || !closed(good) {
			t.Errorf("%d lines wait in a closed pool, closed %t", p.size(), closed(good))
		}
	})
}

// kube-dns has closed the pooled connections, or was restarted. No client waits, and the server's health does not change.
func TestStaleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, how := range []string{"closed idle", "reset", "restarted"} {
			func(t testing.TB) {
				f := newFake(t, onBoth, after(30*time.Millisecond, answersAs("kube-dns")))
				b := serve(t, tcp, f.addr)
				var wg sync.WaitGroup
				for i := range 20 { // at the same time, so that many connections are kept
					wg.Go(func() { b.want("udp", fmt.Sprintf("n%d.example.", i), "kube-dns", 0, time.Second) })
				}
				wg.Wait()
				s := b.server(f.addr)
				if s.tcp.size() < 10 {
					t.Fatalf("%d connections are kept", s.tcp.size())
				}
				switch how {
				case "restarted":
					f.stop()
					f.serve(onBoth)
				case "reset": // the next write on a pooled connection fails
					f.mu.Lock()
					for c := range f.conns {
						c.(*end).reset()
					}
					f.mu.Unlock()
				default:
					f.closeStreams()
				}
				before := f.opened.Load()
				for i := range 5 {
					b.want("udp", fmt.Sprintf("m%d.example.", i), "kube-dns", 30*time.Millisecond, 30*time.Millisecond)
				}
				if n := f.opened.Load() - before; n > 2 {
					t.Errorf("%d new connections for questions one after the other", n)
				}
				if n := s.counts.results[reasonBroken].Load(); n != 0 || s.health.fails.Load() != 0 {
					t.Errorf("%d failures were counted", n)
				}
			}(named{t, how})
		}
	})
}

// A Service chooses an endpoint for each connection: connections end with their age, so that the choice is made again.
func TestConnectionsRebalance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, onBoth, answersAs("kube-dns"))
		b := serve(t, func(a *Block) { a.stream = true; a.servers.maxAge = 200 * time.Millisecond }, f.addr)
		i := 0
		eventually(t, "a third connection", func() bool {
			i++
			b.want("udp", fmt.Sprintf("n%d.example.", i), "kube-dns", 0, quick)
			return f.opened.Load() >= 3
		})
		if int64(i) <= f.opened.Load() {
			t.Errorf("%d questions took %d connections", i, f.opened.Load())
		}
	})
}

// A pooled connection leads to an endpoint that is gone and sends no error: a new one is opened.
func TestSilentConnectionIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var first sync.Once
		silent := make(chan struct{})
		f := newFake(t, onTCP, answersAs("kube-dns"))
		b := serve(t, tcp, f.addr)
		b.want("udp", "a.example.", "kube-dns", 0, quick)
		f.behave(func(q *dns.Msg, stream bool) *dns.Msg {
			mute := false
			first.Do(func() { mute = true; close(silent) })
			if mute {
				return nil
			}
			return answersAs("kube-dns")(q, stream)
		})
		b.want("udp", "b.example.", "kube-dns", hedgeAfter, 2*hedgeAfter-20*time.Millisecond)
		<-silent
		b.want("udp", "c.example.", "kube-dns", 0, quick)
		if b.list[0].health.fails.Load() != 0 || b.list[0].prefersDatagrams(time.Now()) {
			t.Errorf("the server was blamed for one connection:\n%s", b.log)
		}
	})
}

// A server without TCP is queried over UDP after TCP has failed; after streamFails queries, UDP is tried first.
func TestNoTCP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// known sends queries until datagrams are tried first.
		known := func(t testing.TB, b *block, most time.Duration) {
			t.Helper()
			for range streamFails {
				b.want("udp", "x.example.", "udp only", 0, most)
			}
			if !b.Block.servers.Status()[0].NoTCP {
				t.Error("a stream is still tried first")
			}
			if strings.Count(b.log.String(), "fails with TCP") != 1 {
				t.Errorf("log:\n%s", b.log)
			}
			for i := range 3 {
				b.want("udp", fmt.Sprintf("n%d.example.", i), "udp only", 0, quick)
			}
		}
		func(t testing.TB) {
			known(t, serve(t, tcp, newFake(t, onUDP, answersAs("udp only")).addr), quick)
		}(named{t, "refused"})
		func(t testing.TB) {
			g := newFake(t, onUDP, answersAs("udp only"))
			g.host.accept = func(c *end) { io.Copy(io.Discard, c) }
			known(t, serve(t, tcp, g.addr), hedgeAfter)
		}(named{t, "accepted and never answered"})
		func(t testing.TB) {
			f := newFake(t, onUDP, answersAs("udp only"))
			other := newFake(t, onBoth, answersAs("other"))
			b := serve(t, tcp, f.addr, other.addr)
			for i := range failLimit {
				b.want("udp", fmt.Sprintf("n%d.example.", i), "other", 0, quick)
			}
			eventually(t, "asked again, over UDP", func() bool { who, _ := b.ask("udp", "x.example."); return who == "udp only" })
		}(named{t, "found in the background"})
		func(t testing.TB) {
			g := newFake(t, onUDP, answersAs("udp only"))
			g.host.accept = func(c *end) { io.Copy(io.Discard, c) }
			b := serve(t, tcp, g.addr)
			if took, err := b.server(g.addr).sound(b.Block); took != quick || err != nil {
				t.Errorf("a health check takes %s: %v", took, err)
			}
		}(named{t, "checked, and TCP never answers"})
	})
}

func TestTLS(t *testing.T) {
	web := httptest.NewTLSServer(nil) // for its certificate, of example.com
	web.Close()
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, 0, answersAs("secure"))
		f.host.accept = func(c *end) {
			f.serveStream(tls.Server(c, &tls.Config{Certificates: web.TLS.Certificates, MinVersion: tls.VersionTLS12}))
		}
		host, port, _ := net.SplitHostPort(f.addr)
		trust := func(a *Block) { a.servers.roots = roots }
		b := serve(t, trust, "tls://"+host+"%example.com:"+port)
		b.want("udp", "a.example.", "secure", 0, time.Second)
		b.want("udp", "b.example.", "secure", 0, quick)
		if n := b.list[0].counts.opened[1].Load(); n > 2 { // one for the queries, one for loop detection
			t.Errorf("%d connections", n)
		}
		b = serve(t, trust, "tls://"+host+"%other.example:"+port)
		if got, _ := b.ask("udp", "a.example."); !strings.Contains(got, "tls failed") || !strings.Contains(got, "other.example") {
			t.Errorf("with the wrong name: %s", got)
		}
		plain := newFake(t, onBoth, answersAs("plain"))
		b = serve(t, trust, "tls://"+plain.addr)
		if got, _ := b.ask("udp", "a.example."); !strings.HasPrefix(got, "SERVFAIL") || plain.asked[0].Load() != 0 {
			t.Errorf("without TLS: %s, and %d questions in the clear", got, plain.asked[0].Load())
		}
	})
}

// TestLongDead sends a dead server's block many queries: nothing accumulates.
func TestLongDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, stream := range []bool{false, true} {
			b := serve(t, func(a *Block) { a.stream = stream }, blackhole(t), newFake(t, onBoth, silence).addr)
			ctx, cancel := context.WithTimeout(context.Background(), 1200*time.Millisecond)
			defer cancel()
			var wg sync.WaitGroup
			goroutines := runtime.NumGoroutine()
			for i := range 100 {
				wg.Go(func() { b.answer(ctx, "udp", fmt.Sprintf("n%d.example.", i)) })
			}
			wg.Wait()
			eventually(t, "the tries' end", func() bool { return runtime.NumGoroutine() <= goroutines+16 }) // health checks and loop detection
			eventually(t, "both known as dead", func() bool {
				b.answer(ctx, "udp", "again.example.")
				return b.list[0].health.failing.Load() && b.list[1].health.failing.Load()
			})
			open := openEnds.Load()
			for i := range 3 * maxProbes {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
					defer cancel()
					b.answer(ctx, "udp", fmt.Sprintf("m%d.example.", i))
				})
			}
			wg.Wait()
			eventually(t, "no connection more", func() bool { return openEnds.Load() <= open+4 })
			if faults := strings.Join(b.Block.servers.Faults(), "\n"); !strings.Contains(faults, "no server answers well for .: ") {
				t.Errorf("faults: %q", faults)
			}
		}
	})
}

// size is how many connections wait in the pool.
func (p *pool) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lines)
}
