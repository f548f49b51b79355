package server_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"syscall"
	"testing"

	mdns "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/internal/dns/listener"
	"github.com/neardns/neardns/internal/dns/server"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestStartNamesEveryReason checks that a start that cannot get all sockets takes none, and that the error has the reason for each.
func TestStartNamesEveryReason(t *testing.T) {
	up := newUpstream(t, address("10.0.0.1"))
	cfg := config(t, up)
	cfg.Addresses = append(cfg.Addresses, netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3"), netip.MustParseAddr("192.0.2.1"))
	cfg.Port = testutil.FreePort(t, "127.0.0.1", "127.0.0.2", "127.0.0.3")
	held, err := net.Listen("tcp", netip.AddrPortFrom(cfg.Addresses[1], cfg.Port).String())
	testutil.Must(t, err)
	defer held.Close()
	heldUDP, err := net.ListenPacket("udp", netip.AddrPortFrom(cfg.Addresses[2], cfg.Port).String())
	testutil.Must(t, err)
	defer heldUDP.Close()

	s := newServer(slog.New(slog.DiscardHandler))
	err = s.Start(context.Background(), cfg)
	if err == nil {
		s.Stop()
		t.Fatal("started")
	}
	for _, want := range []string{
		fmt.Sprintf("listen on tcp 127.0.0.2:%d: address already in use: on the node, ss -lnp", cfg.Port),
		fmt.Sprintf("listen on udp 127.0.0.3:%d: address already in use: on the node, ss -lnp", cfg.Port),
		"listen on udp 192.0.2.1", "the address is on no link of this host",
	} {
		testutil.WantError(t, err, want)
	}
	var busy *listener.BusyError
	if !errors.As(err, &busy) || !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("not a BusyError: %v", err)
	}
	// Nothing of ours is left on the addresses that were free.
	pc, err := net.ListenPacket("udp", netip.AddrPortFrom(cfg.Addresses[0], cfg.Port).String())
	if err != nil {
		t.Fatalf("a socket is left: %v", err)
	}
	pc.Close()
}

// TestBesideWildcard: another DNS server listens on the wildcard address. If that one uses SO_REUSEPORT, as CoreDNS in the host's network
// does, this server gets the queries to its address; otherwise the start fails. A second server of ours never shares the port.
func TestBesideWildcard(t *testing.T) {
	up := newUpstream(t, address("10.0.0.1"))
	for _, share := range []bool{true, false} {
		cfg := config(t, up)
		other := net.ListenConfig{}
		if share {
			other.Control = func(_, _ string, c syscall.RawConn) error {
				return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
			}
		}
		at := fmt.Sprintf("0.0.0.0:%d", cfg.Port)
		pc, err := other.ListenPacket(context.Background(), "udp4", at)
		testutil.Must(t, err)
		defer pc.Close()
		ln, err := other.Listen(context.Background(), "tcp4", at)
		testutil.Must(t, err)
		defer ln.Close()
		if !share {
			s := newServer(slog.New(slog.DiscardHandler))
			if err := s.Start(context.Background(), cfg); !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("want address in use, got %v", err)
				s.Stop()
			}
			continue
		}
		start(t, cfg)
		if err := newServer(slog.New(slog.DiscardHandler)).Start(context.Background(), cfg); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("want address in use, got %v", err)
		}
		for _, network := range []string{"udp", "tcp"} {
			for i := range 10 {
				wantA(t, testutil.Exchange(t, network, addressOf(cfg), question(fmt.Sprintf("n%d.example.org.", i), mdns.TypeA)), "10.0.0.1")
			}
		}
	}
}

// TestRestartKeepsOldOnFailure gives configurations that cannot be served; each error is returned, also by Check, and the old one answers.
// OnChange's function is called for each chain that is about to answer, and for no other.
func TestRestartKeepsOldOnFailure(t *testing.T) {
	up := newUpstream(t, address("10.0.0.1"))
	cfg := config(t, up)
	s, told := newServer(slog.New(slog.DiscardHandler)), 0
	s.OnChange(func() { told++ })
	testutil.Must(t, s.Start(t.Context(), cfg))
	defer s.Stop() //nolint:errcheck // at the end
	testutil.WantError(t, server.New(slog.New(slog.DiscardHandler), nil).Check(cfg), "not part of this server", "without plugins")
	other, err := net.ListenPacket("udp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), cfg.Port).String())
	testutil.Must(t, err)
	defer other.Close()

	for _, tc := range []struct {
		name   string
		change func(*server.Config)
		want   string
	}{
		{"bad syntax", func(c *server.Config) { c.Override = ". {\n oops\n}" }, "corefile:2"},
		{"plugin refuses", func(c *server.Config) { c.Snippets = map[string]string{".": "cache -1"} }, "plugin/cache"},
		{"plugin refuses, with the remedy", func(c *server.Config) { c.Snippets = map[string]string{".": "cache {\n oops\n}"} }, "config show --corefile"},
		{"zone twice", func(c *server.Config) { c.Override = ". {\n log\n}\n. {\n log\n}" }, "cannot serve"},
		{"file that is not there", func(c *server.Config) { c.Snippets = map[string]string{".": "forward . /no/such/file"} }, "/no/such/file"},
		{"busy address", func(c *server.Config) {
			c.Addresses = append(slices.Clone(c.Addresses), netip.MustParseAddr("127.0.0.2"))
		}, "listen on udp 127.0.0.2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			next := cfg
			tc.change(&next)
			testutil.WantError(t, s.Restart(context.Background(), next), tc.want)
			if err := s.Check(next); (err == nil) != (tc.name == "busy address" || tc.name == "zone twice") {
				t.Errorf("checked: %v", err)
			}
			for _, network := range []string{"udp", "tcp"} {
				wantA(t, testutil.Exchange(t, network, addressOf(cfg), question("a.example.org.", mdns.TypeA)), "10.0.0.1")
			}
		})
	}
	sockets, err := s.Sockets()
	testutil.Must(t, err)
	defer listener.CloseAll(sockets)
	if len(sockets) != 2 || sockets[0].Address.String() != addressOf(cfg) {
		t.Errorf("configuration changed to %+v", sockets)
	}
	if err := errors.Join(s.Check(cfg), s.Restart(context.Background(), cfg)); err != nil || told != 2 {
		t.Errorf("a good one after the bad ones: %v, told of %d chains", err, told)
	}
	wantA(t, testutil.Exchange(t, "udp", addressOf(cfg), question("b.example.org.", mdns.TypeA)), "10.0.0.1")
}

// TestReloadsLeaveNothing reloads many times, of which every second reload fails, and counts goroutines and open files.
func TestReloadsLeaveNothing(t *testing.T) {
	up := newUpstream(t, address("10.0.0.1"))
	cfg := config(t, up)
	cfg.StubDomains = map[string][]nameserver.Address{"a.example": servers(up.addr), "b.example": servers(up.addr)}
	s := start(t, cfg)
	bad := cfg
	bad.Snippets = map[string]string{".": "cache -1"}
	count := func() (int, int) {
		runtime.GC()
		runtime.GC()
		return runtime.NumGoroutine(), testutil.OpenFiles(t)
	}
	reload := func() {
		wantA(t, testutil.Exchange(t, "udp", addressOf(cfg), question("x.cluster.local.", mdns.TypeA)), "10.0.0.1")
		testutil.Must(t, s.Restart(context.Background(), cfg))
		if err := s.Restart(context.Background(), bad); err == nil {
			t.Fatal("the bad configuration was taken")
		}
	}
	for range 3 {
		reload()
	}
	goroutines, files := count()
	for range 6 {
		reload()
	}
	testutil.WaitFor("goroutines and files to go", func() bool {
		g, f := count()
		return g <= goroutines+2 && f <= files+2
	})
}

// TestTransparent checks the socket option by which the switch recognizes the agent's sockets, and that sockets with it serve as others do.
func TestTransparent(t *testing.T) {
	for _, transparent := range []bool{true, false} {
		cfg := config(t, newUpstream(t, address("10.0.0.1")))
		cfg.Addresses = append(cfg.Addresses, netip.IPv6Loopback())
		cfg.Port, cfg.Transparent = testutil.FreePort(t, "127.0.0.1", "::1"), transparent
		s := start(t, cfg)
		sockets, err := s.Sockets()
		if err != nil || len(sockets) != 4 {
			t.Fatalf("%d sockets: %v", len(sockets), err)
		}
		for _, socket := range sockets {
			level, option := unix.SOL_IP, unix.IP_TRANSPARENT
			if socket.Address.Addr().Is6() {
				level, option = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
			}
			var is int
			conn, err := socket.File.SyscallConn() // Fd would have the server's reads block
			testutil.Must(t, err)
			if controlErr := conn.Control(func(fd uintptr) { is, err = unix.GetsockoptInt(int(fd), level, option) }); controlErr != nil {
				t.Fatal(controlErr)
			}
			if err != nil || is == 1 != transparent {
				t.Errorf("%s %s: transparent %d, %v; want %t", socket.Protocol, socket.Address, is, err, transparent)
			}
			if m := testutil.Exchange(t, socket.Protocol, socket.Address.String(), question("a.example.org.", mdns.TypeA)); len(m.Answer) != 1 {
				t.Errorf("%s %s answers %v", socket.Protocol, socket.Address, m)
			}
			_ = socket.File.Close()
		}
	}
}
