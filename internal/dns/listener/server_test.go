package listener

import (
	"net/netip"
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
