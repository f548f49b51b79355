package testutil

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
)

// pair is a client and a server namespace, both families, the server at 10.0.0.2 and fd00::2.
func pair(t *testing.T) (client, server *NetNS) {
	t.Helper()
	client, server = NewNS(t, "client"), NewNS(t, "server")
	VethPair(t, client, "eth0", server, "eth0")
	for _, p := range []string{"10.0.0.1/24", "fd00::1/64"} {
		client.AddAddr("eth0", netip.MustParsePrefix(p))
	}
	for _, p := range []string{"10.0.0.2/24", "fd00::2/64"} {
		server.AddAddr("eth0", netip.MustParsePrefix(p))
	}
	return client, server
}

var servers = []netip.AddrPort{netip.MustParseAddrPort("10.0.0.2:53"), netip.MustParseAddrPort("[fd00::2]:53")}

// TestWrongSource answers a query from an address that was not queried.
func TestWrongSource(t *testing.T) {
	RequireRoot(t)
	t.Parallel()
	client, ns := pair(t)
	ns.AddAddr("eth0", netip.MustParsePrefix("10.0.0.3/24"))
	ServeDNS(t, ns, DNSConfig{Name: "S", Listen: servers[:1]})
	ns.RunInput(`table ip t {
		chain in { type filter hook prerouting priority -300; ip daddr 10.0.0.3 ip daddr set 10.0.0.2; }
	}`, "nft", "-f", "-")
	_, err := Ask(client, netip.MustParseAddrPort("10.0.0.3:53"), "a", dns.TypeA, "udp", AskOptions{})
	var wrong *WrongSourceError
	if !errors.As(err, &wrong) || wrong.Came != servers[0] {
		t.Errorf("got %v", err)
	}
}
