package server_test

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/neardns/neardns/agent/internal/chain"
	"github.com/neardns/neardns/agent/internal/server"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestAskChain asks by the chain, where an operator's Corefile answers, refuses or is not there yet.
func TestAskChain(t *testing.T) {
	s := newServer(slog.New(slog.DiscardHandler))
	if err := s.Ask(t.Context(), "cluster.local"); err == nil {
		t.Error("a server that was not started answers")
	}
	cfg := server.Config{Connections: 1024, Config: chain.Config{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Port: testutil.FreePort(t, "127.0.0.1"), Misses: 1024,
		Override: "cluster.local {\n    whoami\n}\nsick.example {\n    template ANY ANY {\n        rcode SERVFAIL\n    }\n}\n"}}
	if err := s.Start(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	defer s.Stop() //nolint:errcheck // at the end
	for zone, want := range map[string]string{"cluster.local": "", "sick.example": "SERVFAIL", "elsewhere.example": "REFUSED"} {
		err := s.Ask(t.Context(), zone)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", zone, err, want)
		}
	}
}
