package server_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"testing"

	mdns "github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/server"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestInherit: two servers serve one pair of sockets, as two processes do. A query that waits while neither reads is answered later. A
// paused server answers nothing, and when the first has ended, the second answers.
func TestInherit(t *testing.T) {
	up := newUpstream(t, address("10.0.0.1"))
	cfg := config(t, up)
	first := newServer(slog.New(slog.DiscardHandler))
	testutil.Must(t, first.Start(context.Background(), cfg))
	// answers checks which server answers over both protocols; "": either.
	answers := func(want string) {
		t.Helper()
		for _, network := range []string{"udp", "tcp"} {
			m := testutil.Exchange(t, network, addressOf(cfg), question("n.probe.neardns.invalid.", mdns.TypeTXT))
			if len(m.Answer) != 1 || want != "" && m.Answer[0].(*mdns.TXT).Txt[0] != want {
				t.Fatalf("%s: %v answers, want %q", network, m.Answer, want)
			}
		}
	}

	// No server reads for a moment; the query waits.
	first.Pause()
	early, err := net.Dial("udp", addressOf(cfg))
	testutil.Must(t, err)
	defer early.Close()
	_, err = early.Write(testutil.Packed(t, question("early.example.org.", mdns.TypeA)))
	testutil.Must(t, err)
	sockets, err := first.Sockets()
	testutil.Must(t, err)
	next := cfg
	next.InstanceID = "test.2"
	second := newServer(slog.New(slog.DiscardHandler))
	testutil.Must(t, second.StartOn(context.Background(), next, sockets))
	defer second.Stop() //nolint:errcheck // at the end
	if _, err := early.Read(make([]byte, 512)); err != nil {
		t.Errorf("the question that waited in the socket: %v", err)
	}
	answers("") // a reader that passed the gate before a pause may take one more query of each protocol
	for range 20 {
		answers("test.2")
	}
	first.Resume()
	second.Pause()
	answers("")
	answers("test.1")
	second.Resume()
	first.Pause()
	testutil.Check(t, first.Stop())
	answers("test.2")
}

// TestInheritedSocketsAreClosed: a server closes inherited sockets of addresses that it does not serve, and all of them if its
// configuration cannot be served. The process that handed them over still has its own.
func TestInheritedSocketsAreClosed(t *testing.T) {
	up := newUpstream(t, address("10.0.0.1"))
	cfg := config(t, up)
	first, second := newServer(slog.New(slog.DiscardHandler)), newServer(slog.New(slog.DiscardHandler))
	testutil.Must(t, first.Start(t.Context(), cfg))
	other, bad := config(t, up), cfg
	bad.Cluster = nil
	for _, next := range []server.Config{bad, other} {
		sockets, err := first.Sockets()
		testutil.Must(t, err)
		if err := second.StartOn(t.Context(), next, slices.Clone(sockets)); (err == nil) != (len(next.Cluster) > 0) {
			t.Fatal(err)
		}
		for _, s := range sockets {
			if err := s.File.Close(); err == nil {
				t.Errorf("the descriptor of %s %s was left open", s.Protocol, s.Address)
			}
		}
		wantA(t, testutil.Exchange(t, "udp", addressOf(cfg), question("a.example.org.", mdns.TypeA)), "10.0.0.1")
	}
	testutil.Must(t, errors.Join(first.Stop(), second.Stop()))
	start(t, cfg) // no process holds the port
}
