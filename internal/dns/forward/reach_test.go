package forward

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestReach: one server that answers well is enough; silent and refusing servers are not.
func TestReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		well := code(dns.RcodeSuccess)
		streamOnly := func(q *dns.Msg, stream bool) *dns.Msg {
			if !stream {
				return nil
			}
			return well(q, stream)
		}
		lossy := func() func(q *dns.Msg, stream bool) *dns.Msg {
			began := time.Now()
			return func(q *dns.Msg, stream bool) *dns.Msg {
				if time.Since(began) < 500*time.Millisecond {
					return nil
				}
				return well(q, stream)
			}
		}
		for _, tc := range []struct {
			name     string
			servers  []func(q *dns.Msg, stream bool) *dns.Msg
			pressing bool
			want     string
		}{
			{"answers", []func(q *dns.Msg, stream bool) *dns.Msg{well}, false, ""},
			{"answers, pressed", []func(q *dns.Msg, stream bool) *dns.Msg{well}, true, ""},
			{"the second one does", []func(q *dns.Msg, stream bool) *dns.Msg{code(dns.RcodeRefused), well}, false, ""},
			{"a silent one next to it", []func(q *dns.Msg, stream bool) *dns.Msg{silence, well}, true, ""},
			{"over TCP alone", []func(q *dns.Msg, stream bool) *dns.Msg{streamOnly}, true, ""},
			{"a lost packet or two", []func(q *dns.Msg, stream bool) *dns.Msg{lossy()}, true, ""},
			{"refuses", []func(q *dns.Msg, stream bool) *dns.Msg{code(dns.RcodeRefused)}, true, "REFUSED"},
			// Without neardns, pods would get the answers of such a kube-dns too.
			{"holds another zone, and no server is behind it", []func(q *dns.Msg, stream bool) *dns.Msg{denies(".")}, true, ""},
			{"silent", []func(q *dns.Msg, stream bool) *dns.Msg{silence, silence}, true, "silent"},
		} {
			func(t testing.TB) {
				ss := newServers(slog.New(slog.DiscardHandler))
				a := &Block{servers: ss, zones: []string{"cluster.local."}, holds: []string{"cluster.local."}}
				for _, answer := range tc.servers {
					a.specs = append(a.specs, specs(t, newFake(t, onBoth, answer).addr)...)
				}
				a.start()
				defer a.stop()
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				err := ss.Reach(ctx, "kubernetes.default.svc.CLUSTER.local", tc.pressing)
				if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
					t.Errorf("%v, want %q", err, tc.want)
				}
				if err := ss.Reach(ctx, "www.example.", true); !errors.Is(err, ErrNotAsked) {
					t.Errorf("a name of no block: %v", err)
				}
				cancel()
				if ss.Reach(ctx, "kubernetes.default.svc.cluster.local", tc.pressing) == nil {
					t.Error("an answer after the end of the context")
				}
				for _, s := range a.list {
					if s.health.failing.Load() || s.health.fails.Load() > 0 {
						t.Error("the question counts against the server")
					}
				}
			}(named{t, tc.name})
		}
	})
}

// Heard counts answers to clients only, because a lease is renewed for them: health checks do not count.
func TestHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, onBoth, code(dns.RcodeRefused))
		b := serve(t, nil, f.addr)
		for _, bad := range []func(*dns.Msg, bool) *dns.Msg{code(dns.RcodeRefused), code(dns.RcodeServerFailure)} {
			f.behave(bad)
			b.ask("udp", "a.example.")
			if ago, ok := b.Block.servers.Heard("example."); ok {
				t.Errorf("heard %s ago, and no client was answered", ago)
			}
		}
		f.behave(answersAs("upstream"))
		b.want("udp", "b.example.", "upstream", 0, time.Minute)
		if ago, ok := b.Block.servers.Heard("example."); !ok || ago < 0 || ago > time.Minute {
			t.Errorf("heard %t, %s ago", ok, ago)
		}
	})
}

// The last resort's packets have the mark by which the host table recognises them.
func TestMark(t *testing.T) {
	testutil.RequireRoot(t)
	for _, mark := range []int{0, 0x10} {
		l, err := dial(t.Context(), connectSocket, "127.0.0.1:53", false, nil, mark)
		testutil.Must(t, err)
		raw, err := l.conn.(*net.UDPConn).SyscallConn()
		testutil.Must(t, err)
		got := -1
		if err := raw.Control(func(fd uintptr) { got, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK) }); err != nil || got != mark {
			t.Errorf("mark %#x, want %#x: %v", got, mark, err)
		}
		l.conn.Close()
	}
}

// A reload that turns interceptNode on adds the mark to the last resort, while the old block still uses that server.
func TestMarkAfterReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ss := newServers(slog.New(slog.DiscardHandler))
		var marks []int
		ss.connect = func(ctx context.Context, network, addr string, mark int) (net.Conn, error) {
			marks = append(marks, mark)
			return connectInMemory(ctx, network, addr, mark)
		}
		sp := specs(t, blackhole(t))[0]
		for _, mark := range []int{0, 0x10, 0} {
			sp.mark = mark
			s := ss.acquire(sp)
			defer ss.release(s)
			l, err := s.ready(false)
			testutil.Must(t, err)
			s.udp.give(l)
		}
		if want := []int{0, 0x10}; !slices.Equal(marks, want) || len(ss.Status()) != 1 {
			t.Errorf("sockets with the marks %x, want %x; servers: %+v", marks, want, ss.Status())
		}
	})
}
