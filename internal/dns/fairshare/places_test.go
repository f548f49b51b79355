package fairshare

import (
	"net"
	"net/netip"
	"testing"
)

func TestSource(t *testing.T) {
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
		if got := Source(tc.addr).String(); got != tc.want {
			t.Errorf("source of %v is %s, want %s", tc.addr, got, tc.want)
		}
	}
}

// One greedy source gets half, and n of them one part of n+1 each: as much stays for who comes.
func TestPlaces(t *testing.T) {
	for greedy := 1; greedy <= 5; greedy++ {
		p := Of(120)
		for again := true; again; {
			again = false
			for i := range greedy {
				if src := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}); p.MayTake(src) {
					p.Take(src)
					again = true
				}
			}
		}
		if want := 120 / (greedy + 1); p.Free() < want-1 || p.Free() > want+1 || p.Sources() != greedy {
			t.Errorf("%d greedy sources leave %d of 120", greedy, p.Free())
		}
		for i := range greedy {
			for src := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}); p.Held(src) > 0; {
				p.Give(src)
			}
		}
		if p.Taken() != 0 || p.Sources() != 0 {
			t.Errorf("%d places and %d sources stay", p.Taken(), p.Sources())
		}
	}
}
