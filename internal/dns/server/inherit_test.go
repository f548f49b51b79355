package server_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"testing"

	mdns "github.com/miekg/dns"
)

// TestInherit: two servers serve one pair of sockets, as two processes do. A query that waits while neither reads is answered later. A
// paused server answers nothing, and when the first has ended, the second answers.
func TestInherit(t *testing.T) {
	up := newUpstream(t, address("10.0.0.1"))
	cfg := config(t, up)
	first := newServer(slog.New(slog.DiscardHandler))
	if err := first.Start(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	who := func(network string) string {
		t.Helper()
		m := ask(t, network, addressOf(cfg), question("n.probe.neardns.invalid.", mdns.TypeTXT))
		if len(m.Answer) != 1 {
			t.Fatalf("probe answered %v", m)
		}
		return m.Answer[0].(*mdns.TXT).Txt[0]
	}
	// A reader that passed the gate before a pause may take one more query of each protocol.
	either := func() {
		t.Helper()
		for _, network := range []string{"udp", "tcp"} {
			who(network)
		}
	}

	// No server reads for a moment; the query waits.
	first.Pause()
	early, err := net.Dial("udp", addressOf(cfg))
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	wire, err := question("early.example.org.", mdns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := early.Write(wire); err != nil {
		t.Fatal(err)
	}

	sockets, err := first.Sockets()
	if err != nil {
		t.Fatal(err)
	}
	next := cfg
	next.InstanceID = "test.2"
	second := newServer(slog.New(slog.DiscardHandler))
	if err := second.StartOn(context.Background(), next, sockets); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := second.Stop(); err != nil {
			t.Error(err)
		}
	})
	if _, err := early.Read(make([]byte, 512)); err != nil {
		t.Errorf("the question that waited in the socket: %v", err)
	}
	either()
	for range 20 {
		for _, network := range []string{"udp", "tcp"} {
			if got := who(network); got != "test.2" {
				t.Fatalf("%s: %s answers while it is paused", network, got)
			}
		}
	}
	first.Resume()
	second.Pause()
	either()
	for _, network := range []string{"udp", "tcp"} {
		if got := who(network); got != "test.1" {
			t.Errorf("%s: %s answers, resumed was the other", network, got)
		}
	}
	second.Resume()
	first.Pause()
	if err := first.Stop(); err != nil {
		t.Error(err)
	}
	for _, network := range []string{"udp", "tcp"} {
		if got := who(network); got != "test.2" {
			t.Errorf("%s: %s answers after its end", network, got)
		}
	}
}

// TestUnusedSocketsAreClosed gives a server sockets of an address that it does not serve.
func TestUnusedSocketsAreClosed(t *testing.T) {
	up := newUpstream(t, address("10.0.0.1"))
	cfg := config(t, up)
	first := newServer(slog.New(slog.DiscardHandler))
	if err := first.Start(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	sockets, err := first.Sockets()
	if err != nil {
		t.Fatal(err)
	}
	other := config(t, up)
	second := newServer(slog.New(slog.DiscardHandler))
	if err := second.StartOn(context.Background(), other, slices.Clone(sockets)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(first.Stop(), second.Stop()); err != nil {
		t.Fatal(err)
	}
	for _, s := range sockets {
		if err := s.File.Close(); err == nil {
			t.Errorf("the descriptor of %s %s was left open", s.Protocol, s.Address)
		}
	}
	start(t, cfg) // no process holds the port
}

// TestRefusedStartClosesItsSockets: if a configuration cannot be served, the server closes the inherited sockets, and the process that
// handed them over still has them.
func TestRefusedStartClosesItsSockets(t *testing.T) {
	cfg := config(t, newUpstream(t, address("10.0.0.1")))
	first := start(t, cfg)
	sockets, err := first.Sockets()
	if err != nil {
		t.Fatal(err)
	}
	bad := cfg
	bad.Cluster = nil
	if err := newServer(slog.New(slog.DiscardHandler)).StartOn(context.Background(), bad, slices.Clone(sockets)); err == nil {
		t.Fatal("started")
	}
	for _, s := range sockets {
		if err := s.File.Close(); err == nil {
			t.Errorf("the descriptor of %s %s was left open", s.Protocol, s.Address)
		}
	}
	wantA(t, ask(t, "udp", addressOf(cfg), question("a.example.org.", mdns.TypeA)), "10.0.0.1")
}

// TestOnChange: the function is called for each chain that is about to answer, and for no other.
func TestOnChange(t *testing.T) {
	cfg := config(t, newUpstream(t, address("10.0.0.1")))
	s, told := newServer(slog.New(slog.DiscardHandler)), 0
	s.OnChange(func() { told++ })
	if err := s.Start(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	bad := cfg
	bad.Snippets = map[string]string{".": "cache -1"}
	if err := s.Restart(context.Background(), bad); err == nil || told != 1 {
		t.Errorf("told %d times of one chain; a bad one: %v", told, err)
	}
	if err := s.Restart(context.Background(), cfg); err != nil || told != 2 {
		t.Errorf("told %d times of two chains: %v", told, err)
	}
}

// TestStopLosesNothing stops under load on UDP sockets, on connections that stay and on new ones. As under a withdrawn
// lease, no client sends queries once the stop begins, but what was sent before is answered, and a connection ends only between two
// queries: a client that pipelines gets both answers.
func TestStopLosesNothing(t *testing.T) {
	up := newUpstream(t, address("10.0.0.1"))
	cfg := config(t, up)
	s := newServer(slog.New(slog.DiscardHandler))
	if err := s.Start(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	const many = 200
	udp, err := net.Dial("udp", addressOf(cfg))
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	tcp, err := net.Dial("tcp", addressOf(cfg))
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	for i := range many {
		wire, err := question(fmt.Sprintf("n%d.example.org.", i), mdns.TypeA).Pack()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := udp.Write(wire); err != nil {
			t.Fatal(err)
		}
		if _, err := tcp.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(wire))), wire...)); err != nil {
			t.Fatal(err)
		}
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.Stop() }()

	buf := make([]byte, 512)
	for i := range many {
		if _, err := udp.Read(buf); err != nil {
			t.Fatalf("udp, answer %d: %v", i, err)
		}
	}
	for i := range many {
		var length [2]byte
		if _, err := io.ReadFull(tcp, length[:]); err != nil {
			t.Fatalf("tcp, answer %d: %v", i, err)
		}
		if _, err := io.ReadFull(tcp, make([]byte, binary.BigEndian.Uint16(length[:]))); err != nil {
			t.Fatalf("tcp, answer %d: %v", i, err)
		}
	}
	if _, err := tcp.Read(buf); !errors.Is(err, io.EOF) {
		t.Errorf("after the last answer: %v, want the end of file", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
