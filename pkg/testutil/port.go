package testutil

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/miekg/dns"
)

// FreePort chooses from these ports. Linux gives clients ports from 32,768 on (net.ipv4.ip_local_port_range), so no client gets one of
// these by chance between FreePort's check and the caller's bind.
const (
	portLeast = 20_000
	portMost  = 32_000
)

// FreePort returns a port of this netns that is free on each of the addresses, for UDP and TCP. Without addresses, it checks 127.0.0.1. The
// caller binds the port. Until the end of the test, FreePort returns the port to no other caller in any process, because a server may bind
// it late.
func FreePort(t TB, addresses ...string) uint16 {
	t.Helper()
	if len(addresses) == 0 {
		addresses = []string{"127.0.0.1"}
	}
	for range 100 {
		port := uint16(portLeast + rand.N(portMost-portLeast))
		// Like ports, abstract names of Unix sockets belong to the netns, and the kernel frees them when the process ends.
		taken, err := net.ListenPacket("unixgram", "@neardns-test-port-"+strconv.Itoa(int(port)))
		if err != nil {
			continue
		}
		if isFree(port, addresses) {
			t.Cleanup(func() { _ = taken.Close() })
			return port
		}
		_ = taken.Close()
	}
	t.Fatalf("no port is free on %v", addresses)
	return 0
}

func isFree(port uint16, addresses []string) bool {
	for _, a := range addresses {
		at := net.JoinHostPort(a, strconv.Itoa(int(port)))
		pc, err := net.ListenPacket("udp", at)
		if err != nil {
			return false
		}
		pc.Close()
		l, err := net.Listen("tcp", at)
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}

// ListenBoth listens on one port of 127.0.0.1 over TCP and UDP. The caller closes both.
func ListenBoth(t TB) (*net.TCPListener, *net.UDPConn) {
	t.Helper()
	var err error
	for range 10 {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), FreePort(t))
		l, listenErr := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
		if err = listenErr; err != nil {
			continue
		}
		pc, listenErr := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		if err = listenErr; err == nil {
			return l, pc
		}
		l.Close()
	}
	t.Fatalf("no port is free for UDP and TCP: %v", err)
	return nil, nil
}

// ServeBoth serves on one port of 127.0.0.1 over TCP and UDP until the end of the test, which waits for what handle still does.
func ServeBoth(t TB, handle dns.HandlerFunc) (address string) {
	t.Helper()
	tcp, udp := ListenBoth(t)
	for _, s := range []*dns.Server{{Listener: tcp}, {PacketConn: udp}} {
		ready, ended := make(chan struct{}), make(chan error, 1)
		s.Handler, s.NotifyStartedFunc, s.MaxTCPQueries, s.ReadTimeout = handle, func() { close(ready) }, -1, time.Hour
		s.IdleTimeout = func() time.Duration { return time.Hour } // long connections are the client's to close
		go func() { ended <- s.ActivateAndServe() }()
		<-ready
		t.Cleanup(func() {
			_ = s.Shutdown()
			Must(t, <-ended)
		})
	}
	return tcp.Addr().String()
}
