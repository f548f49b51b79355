package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestReloadOfADeadServer lets every socket die and a reload come before the server has noticed.
func TestReloadOfADeadServer(t *testing.T) {
	s, cfg := start(t, answer)
	done := s.Done()
	for _, p := range s.points {
		_ = p.socket.Close()
	}
	<-done
	cfg.Addresses = append(cfg.Addresses, netip.MustParseAddr("127.0.0.2"))
	next := &handler{do: answer}
	testutil.Must(t, s.Restart(t.Context(), cfg, next.build))
	testutil.Must(t, s.Stop()) // which ends the new sockets, too
	testutil.Equal(t, "times that the chain was closed", 1, next.closed.Load())
}

// TestOwnQueries: a server answers queries of its own process, also if it listens nowhere, by the chain that it has now.
func TestOwnQueries(t *testing.T) {
	s, cfg := New(slog.New(slog.DiscardHandler), nil), configOf(t)
	cfg.Deaf = true
	says := func(rcode int) Build {
		return (&handler{do: func(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(new(dns.Msg).SetRcode(q, rcode)) }}).build
	}
	wire := testutil.Packed(t, question("a.cluster.local.", dns.TypeA))
	if _, err := s.Fetch(wire, nil); !errors.Is(err, ErrStopped) || s.Query(t.Context(), "cluster.local") == nil {
		t.Errorf("before its start: %v", err)
	}
	testutil.Must(t, s.Start(t.Context(), cfg, says(dns.RcodeNameError), nil))
	defer s.Stop() //nolint:errcheck // at the end
	for rcode, want := range map[int]string{0: "<nil>", dns.RcodeNameError: "<nil>", dns.RcodeServerFailure: "cluster.local: SERVFAIL"} {
		testutil.Must(t, s.Restart(t.Context(), cfg, says(rcode)))
		if got, err := s.Fetch(wire, nil); err != nil || got != rcode {
			t.Errorf("%d, %v; want %d", got, err, rcode)
		}
		if got := fmt.Sprint(s.Query(t.Context(), "cluster.local")); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if _, err := s.Fetch(wire[:13], nil); err == nil {
		t.Error("half a question was answered")
	}
	if sockets, err := s.Sockets(); err != nil || len(sockets) != 0 {
		t.Errorf("it listens: %v, %v", sockets, err)
	}
}

// TestQueryEndsDuringReload: the agent's own query ends with its context, also while a reload lasts.
func TestQueryEndsDuringReload(t *testing.T) {
	s, cfg := start(t, answer)
	ended, end := context.WithCancel(t.Context())
	end()
	testutil.Must(t, s.Restart(t.Context(), cfg, func(Chain) (Chain, error) {
		if err := s.Query(ended, "example.org"); err == nil {
			t.Error("answered by a server that reloads")
		}
		return &handler{do: answer}, nil
	}))
}

// TestQueryDuringReloads: each of the agent's own queries finds a plugin chain, also while one replaces another.
func TestQueryDuringReloads(t *testing.T) {
	s, cfg := New(slog.New(slog.DiscardHandler), nil), configOf(t)
	cfg.Deaf = true
	testutil.Must(t, s.Start(t.Context(), cfg, (&handler{do: answer}).build, nil))
	var failed atomic.Pointer[error]
	ended := make(chan struct{})
	var queries sync.WaitGroup
	for range 4 {
		queries.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
				}
				if err := s.Query(t.Context(), "example.org"); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	for range 10_000 {
		testutil.Check(t, s.Restart(t.Context(), cfg, (&handler{do: answer}).build))
		if failed.Load() != nil {
			break
		}
	}
	close(ended)
	queries.Wait()
	if err := failed.Load(); err != nil {
		t.Error(*err)
	}
	testutil.Check(t, s.Stop())
}
