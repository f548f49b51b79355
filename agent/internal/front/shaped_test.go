package front

import (
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

// steering is where the node of these tests serves.
var steering = netip.MustParseAddr("169.254.20.11")

// twoPods is a node with the pods "slow" (10.0.0.1) and "fast" (10.0.0.2), each behind a link of its name.
func twoPods(t *testing.T) (host *testutil.NetNS, pods map[string]*testutil.NetNS) {
	t.Helper()
	testutil.RequireRoot(t)
	host, pods = testutil.NewNS(t, "host"), map[string]*testutil.NetNS{}
	host.AddAddr("lo", testutil.Host(steering))
	for i, name := range []string{"slow", "fast"} {
		pod, at := testutil.NewNS(t, name), netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		pods[name] = pod
		testutil.VethPair(t, host, name, pod, "eth0")
		pod.AddAddr("eth0", testutil.Host(at))
		host.Up(name)
		pod.Up("eth0")
		host.AddRoute(testutil.Host(at), netip.Addr{}, name)
		pod.AddRoute(testutil.Host(steering), netip.Addr{}, "eth0")
	}
	return host, pods
}

func serveIn(t *testing.T, host *testutil.NetNS, s *Server, h *handler) Config {
	t.Helper()
	cfg := Config{Addresses: []netip.Addr{steering}, Port: 53, Misses: 1024, Connections: 1024}
	var err error
	host.Do(func() { err = s.Start(t.Context(), cfg, h.build, nil) })
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func dialFrom(t *testing.T, pod *testutil.NetNS, cfg Config) (conn net.Conn) {
	t.Helper()
	var err error
	pod.Do(func() { conn, err = net.Dial("udp", addressOf(cfg)) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// TestSlowLink: a pod whose link is shaped (the bandwidth plugin's token bucket) and that asks more than the link carries has its answers
// wait in that link's queue, where they count as the socket's. Its neighbours are answered all the same.
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
		if err := change(bucket); err != nil {
			t.Fatal(err)
		}
	}
	for way, h := range ways() {
		t.Run(way, func(t *testing.T) {
			s := New(slog.New(slog.DiscardHandler), nil)
			cfg := serveIn(t, host, s, h)
			defer s.Stop()
			q, err := question("a.example.org.", dns.TypeA).Pack()
			if err != nil {
				t.Fatal(err)
			}
			dial := func(pod string) net.Conn { return dialFrom(t, pods[pod], cfg) }
			var before int
			udp, _ := halves(t, s)
			if err := udp.udp.raw.Control(func(fd uintptr) { before, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF) }); err != nil {
				t.Fatal(err)
			}
			shape(true)
			fast, greedy := dial("fast"), dial("slow")
			lost := 0
			for range 50 {
				for range 100 {
					greedy.Write(q)
				}
				fast.Write(q)
				fast.SetReadDeadline(time.Now().Add(time.Second))
				if _, err := fast.Read(make([]byte, 512)); err != nil {
					lost++
				}
			}
			if lost > 0 {
				t.Errorf("%d of 50 questions of the neighbour were lost", lost)
			}
			if s.quota.dropped.Load() == 0 {
				t.Error("the slow link held nothing back: the test says nothing")
			}
			shape(false) // with it goes what waits in its queue
			waitFor(t, "the socket is as it was", func() (same bool) {
				fast.Write(q)
				err := udp.udp.raw.Write(func(fd uintptr) bool {
					most, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
					same = udp.udp.room.most == 0 && udp.udp.room.slow == nil && most == before
					return true
				})
				return err == nil && same
			})
		})
	}
}
