package hostnet

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/neardns/neardns/pkg/testutil"
)

// The calls set the named properties, in another netns too, and a second time they change nothing.
func TestEnd(t *testing.T) {
	testutil.RequireRoot(t)
	here, there := testutil.NewNS(t, "host"), testutil.NewNS(t, "pod")
	for _, ns := range []*testutil.NetNS{here, there} {
		ns.Sysctl("net.ipv6.conf.default.disable_ipv6", "1") // as on hosts where new links have IPv6 disabled
	}
	open := func(ns *testutil.NetNS) Handle {
		h, err := OpenHandle(ns.FD())
		testutil.Must(t, err)
		t.Cleanup(h.Close)
		return h
	}
	h, peer := open(here), open(there)
	mac, other := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	testutil.Must(t, h.AddVeth("near", mac, "far", other, there.FD()))
	ensure := func(h Handle, name string, mac net.HardwareAddr) []string {
		t.Helper()
		e, err := h.End(name)
		testutil.Must(t, err)
		e.MAC(mac)
		e.NoARP()
		e.NoMulticast()
		e.IPv6()
		e.Up()
		e.Address(&netlink.Addr{IPNet: HostNet(netip.MustParseAddr("192.0.2.1"))})
		e.Address(&netlink.Addr{IPNet: HostNet(netip.MustParseAddr("2001:db8::1"))})
		repaired, err := e.Done()
		testutil.Must(t, err)
		return repaired
	}
	for name, h := range map[string]Handle{"near": h, "far": peer} {
		swapped := mac
		if name == "near" {
			swapped = other
		}
		want := []string{"set hardware address", "set address resolution off", "set multicast off", "set net.ipv6.conf." + name + ".disable_ipv6 = 0",
			"set addrgenmode none", "set up", "add address 192.0.2.1/32", "add address 2001:db8::1/128"}
		testutil.Equal(t, name, want, ensure(h, name, swapped))
		testutil.Equal(t, name+", once more", nil, ensure(h, name, swapped))
		l, err := h.LinkByName(name)
		testutil.Must(t, err)
		addrs, err := h.AddrList(l, netlink.FAMILY_ALL)
		if err != nil || len(addrs) != 2 {
			t.Errorf("%s has %v (%v): the kernel gave it one of its own", name, addrs, err)
		}
	}
	for range 2 {
		testutil.Check(t, h.RemoveVeth("near"))
	}
	if _, err := peer.LinkByName("far"); !IsNoLink(err) {
		t.Errorf("the peer stays: %v", err)
	}
	here.Run("ip", "link", "add", "near", "type", "bridge")
	testutil.Check(t, h.RemoveVeth("near"))
	_, err := h.LinkByName("near")
	testutil.Check(t, err, "a bridge is no veth")
}
