package listener

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
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
	if err := s.Restart(t.Context(), cfg, next.build); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil { // which ends the new sockets, too
		t.Fatal(err)
	}
	if next.closed.Load() != 1 {
		t.Errorf("the chain was closed %d times", next.closed.Load())
	}
}

// TestQueryEndsDuringReload: the agent's own query ends with its context, also while a reload lasts.
func TestQueryEndsDuringReload(t *testing.T) {
	s, cfg := start(t, answer)
	ended, end := context.WithCancel(t.Context())
	end()
	if err := s.Restart(t.Context(), cfg, func(Chain) (Chain, error) {
		if err := s.Query(ended, "example.org"); err == nil {
			t.Error("answered by a server that reloads")
		}
		return &handler{do: answer}, nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestQueryDuringReloads: each of the agent's own queries finds a plugin chain, also while one replaces another.
func TestQueryDuringReloads(t *testing.T) {
	s, cfg := New(slog.New(slog.DiscardHandler), nil), configOf(t)
	cfg.Deaf = true
	if err := s.Start(t.Context(), cfg, (&handler{do: answer}).build, nil); err != nil {
		t.Fatal(err)
	}
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
		if err := s.Restart(t.Context(), cfg, (&handler{do: answer}).build); err != nil {
			t.Error(err)
		}
		if failed.Load() != nil {
			break
		}
	}
	close(ended)
	queries.Wait()
	if err := failed.Load(); err != nil {
		t.Error(*err)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}
