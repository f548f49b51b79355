package fairshare

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestClient(t *testing.T) {
	for _, tc := range []struct {
		addr net.Addr
		want string
	}{
		{&net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}, "10.0.0.1"},
		{&net.TCPAddr{IP: net.ParseIP("::ffff:10.0.0.1"), Port: 2}, "10.0.0.1"},
		{&net.UDPAddr{IP: net.ParseIP("fd00::1"), Port: 3}, "fd00::1"},
		{&net.UDPAddr{IP: net.ParseIP("fd00::2"), Port: 3}, "fd00::2"}, // the same /64, another pod
		{&net.UDPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0"}, "fe80::1"},
		{nil, "invalid IP"},
		{&net.UnixAddr{Name: "x"}, "invalid IP"},
	} {
		testutil.Equal(t, fmt.Sprintf("client of %v", tc.addr), tc.want, Client(tc.addr).String())
	}
}

// One greedy client gets half of the slots, n of them one part of n+1 each, and as much stays free for newcomers.
func TestPool(t *testing.T) {
	const slots = 1024
	for _, greedy := range []int{1, 2, 3, 4, 5, 100} {
		p := New(slots)
		for again := true; again; {
			again = false
			for i := range greedy {
				if src := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}); p.MayAcquire(src) {
					p.Acquire(src)
					again = true
				}
			}
		}
		if want := slots / (greedy + 1); p.Free() < want-1 || p.Free() > want+1 || p.Clients() != greedy {
			t.Errorf("%d greedy clients leave %d of %d", greedy, p.Free(), slots)
		}
		for i := range greedy {
			for src := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}); p.UsedBy(src) > 0; {
				p.Release(src)
			}
		}
		if p.Used() != 0 || p.Clients() != 0 {
			t.Errorf("%d slots and %d clients stay", p.Used(), p.Clients())
		}
	}
}
