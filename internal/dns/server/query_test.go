package server_test

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/internal/dns/listener"
	"github.com/neardns/neardns/internal/dns/server"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestAskChain sends the agent's own query through the chain of an operator's Corefile, which answers, refuses, or does not exist yet.
func TestAskChain(t *testing.T) {
	s := newServer(slog.New(slog.DiscardHandler))
	if err := s.Query(t.Context(), "cluster.local"); err == nil {
		t.Error("a server that was not started answers")
	}
	cfg := server.Config{Connections: 1024, Config: corefile.Config{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Port: testutil.FreePort(t, "127.0.0.1"), Misses: 1024,
		Override: "cluster.local {\n    whoami\n}\nsick.example {\n    template ANY ANY {\n        rcode SERVFAIL\n    }\n}\n"}}
	if err := s.Start(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	defer s.Stop() //nolint:errcheck // at the end
	for zone, want := range map[string]string{"cluster.local": "", "sick.example": "SERVFAIL", "elsewhere.example": "REFUSED"} {
		err := s.Query(t.Context(), zone)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", zone, err, want)
		}
	}
}

// TestDeaf: a server that listens nowhere answers its own process, also by another configuration.
func TestDeaf(t *testing.T) {
	s := newServer(slog.New(slog.DiscardHandler))
	question, err := new(dns.Msg).SetQuestion("a.cluster.local.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Fetch(question, nil); !errors.Is(err, listener.ErrStopped) {
		t.Errorf("before its start: %v", err)
	}
	cfg := server.Config{Deaf: true, Config: corefile.Config{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Port: testutil.FreePort(t, "127.0.0.1"), Misses: 1024,
		Override: "cluster.local {\n    template ANY ANY {\n        rcode NXDOMAIN\n    }\n}\n"}}
	if err := s.Start(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	defer s.Stop() //nolint:errcheck // at the end
	if code, err := s.Fetch(question, nil); err != nil || code != dns.RcodeNameError {
		t.Error(code, err)
	}
	cfg.Override = "cluster.local {\n    whoami\n}\n"
	if err := s.Restart(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if code, err := s.Fetch(question, nil); err != nil || code != dns.RcodeSuccess {
		t.Error(code, err)
	}
	if _, err := s.Fetch(question[:13], nil); err == nil {
		t.Error("half a question was answered")
	}
	if sockets, err := s.Sockets(); err != nil || len(sockets) != 0 {
		t.Errorf("it listens: %v, %v", sockets, err)
	}
}
