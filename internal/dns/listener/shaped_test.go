package listener

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// steering and steering6 are the addresses at which the node of these tests serves.
var (
	steering  = netip.MustParseAddr("169.254.20.11")
	steering6 = netip.MustParseAddr("fd00:90de:d95::b")
)

// twoPods is a node with the pods "slow" (10.0.0.1, fd00::1) and "fast" (10.0.0.2, fd00::2), each behind a link of its name.
func twoPods(t *testing.T) (host *testutil.NetNS, pods map[string]*testutil.NetNS) {
	t.Helper()
	testutil.RequireRoot(t)
	host, pods = testutil.NewNS(t, "host"), map[string]*testutil.NetNS{}
	for i, name := range []string{"slow", "fast"} {
		pod := testutil.NewNS(t, name)
		pods[name] = pod
		testutil.VethPair(t, host, name, pod, "eth0")
		host.Up(name)
		pod.Up("eth0")
		for server, at := range map[netip.Addr]netip.Addr{steering: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), steering6: netip.AddrFrom16([16]byte{0xfd, 15: byte(i + 1)})} {
			if i == 0 {
				host.AddAddr("lo", testutil.Host(server))
			}
			pod.AddAddr("eth0", testutil.Host(at))
			host.AddRoute(testutil.Host(at), netip.Addr{}, name)
		}
		pod.AddRoute(testutil.Host(steering), netip.Addr{}, "eth0")
		// A host announces to no neighbour the IPv6 addresses of its other links.
		gateway := netip.MustParseAddr("fe80::1")
		host.AddAddr(name, netip.PrefixFrom(gateway, 64))
		pod.AddRoute(testutil.Host(steering6), gateway, "eth0")
	}
	return host, pods
}

// eachWay runs do for a server at one of the node's addresses, once with and once without a fast path. q is a query.
func eachWay(t *testing.T, host *testutil.NetNS, at netip.Addr, do func(t *testing.T, s *Server, cfg Config, h *handler, q []byte)) {
	t.Helper()
	q := testutil.Packed(t, question("a.example.org.", dns.TypeA))
	for way, h := range map[string]*handler{"before the chain": {do: answer, first: echo{}}, "the chain": {do: answer}} {
		t.Run(way, func(t *testing.T) {
			s := New(slog.New(slog.DiscardHandler), nil)
			cfg := Config{Addresses: []netip.Addr{at}, Port: 53, Misses: 1024, Connections: 1024}
			var err error
			host.Do(func() { err = s.Start(t.Context(), cfg, h.build, nil) })
			testutil.Must(t, err)
			defer func() { testutil.Must(t, s.Stop()) }()
			do(t, s, cfg, h, q)
		})
	}
}

func dialFrom(t *testing.T, pod *testutil.NetNS, cfg Config) (conn net.Conn) {
	t.Helper()
	var err error
	pod.Do(func() { conn, err = net.Dial("udp", addressOf(cfg)) })
	testutil.Must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// TestSlowLink: a pod's link is shaped (the bandwidth plugin's token bucket), and the pod sends more queries than the link can carry
// answers. The answers wait in the link's queue and count against the socket. Other pods are answered all the same.
func TestSlowLink(t *testing.T) {
	host, pods := twoPods(t)
	const rate, burst = 2000, 4000 // bytes
	shape := func(yes bool) {
		bucket := &netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: host.Link("slow").Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate: rate, Limit: 64 << 20, Buffer: uint32(burst / float64(rate) * netlink.TIME_UNITS_PER_SEC * netlink.TickInUsec())}
		change := host.Netlink().QdiscAdd
		if !yes {
			change = host.Netlink().QdiscDel
		}
		testutil.Must(t, change(bucket))
	}
	for family, at := range map[string]netip.Addr{"IPv4": steering, "IPv6": steering6} {
		t.Run(family, func(t *testing.T) {
			eachWay(t, host, at, func(t *testing.T, s *Server, cfg Config, _ *handler, q []byte) {
				udp, _ := halves(t, s)
				before, err := sendBuffer(udp)
				testutil.Must(t, err)
				shape(true)
				fast, greedy := dialFrom(t, pods["fast"], cfg), dialFrom(t, pods["slow"], cfg)
				lost := false
				for i := 0; i < 50 && !lost; i++ {
					for range 100 {
						greedy.Write(q)
					}
					fast.Write(q)
					fast.SetReadDeadline(time.Now().Add(testutil.Patience())) // what has no room in the socket is never sent
					if _, err := fast.Read(make([]byte, 512)); err != nil {
						lost = true
						t.Errorf("question %d of the neighbour was lost: %v", i, err)
					}
				}
				if s.quota.dropped.Load() == 0 {
					t.Error("the slow link held nothing back: the test says nothing")
				}
				shape(false) // with it goes what waits in its queue
				testutil.WaitFor("the socket is as it was", func() bool {
					fast.Write(q)
					most, err := sendBuffer(udp)
					return err == nil && most == before && roomless(udp)
				})
			})
		})
	}
}

// sendBuffer returns the size of a point's send buffer.
func sendBuffer(p *point) (most int, err error) {
	controlErr := p.udp.raw.Control(func(fd uintptr) { most, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF) })
	return most, errors.Join(err, controlErr)
}

// roomless reports whether a point's send buffer has its original size, and no client counts as slow.
func roomless(p *point) (yes bool) {
	_ = p.udp.raw.Write(func(uintptr) bool { // an error: the socket is closed
		yes = p.udp.room.most == 0 && p.udp.room.slow == nil
		return true
	})
	return yes
}
