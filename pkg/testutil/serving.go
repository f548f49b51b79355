package testutil

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// Settle waits until a link's IPv6 addresses are usable. A socket can be bound to an address without duplicate detection at once, but
// the kernel adds the address's local route in a work queue, which a busy machine delays. Until then it drops packets to the address.
// (The agent need not wait: its prober's queries are dropped too, so it gets no lease.)
func (n *NetNS) Settle(link string) {
	n.t.Helper()
	Eventually(n.t, func() error {
		addrs, err := n.handle.AddrList(n.Link(link), unix.AF_INET6)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			routes, err := n.handle.RouteGet(a.IP)
			if err != nil {
				return fmt.Errorf("in %s, %s: %w", n.name, a.IP, err)
			}
			if !a.IP.IsLinkLocalUnicast() && routes[0].Type != unix.RTN_LOCAL {
				return fmt.Errorf("in %s, %s is not local yet", n.name, a.IP)
			}
		}
		return nil
	})

}

// Serving makes a bridge without ports, as the agent does if the kernel has no dummy links, adds the addresses to it, and waits until they
// are usable.
func (n *NetNS) Serving(link string, addrs ...netip.Addr) {
	n.t.Helper()
	n.Bridge(link)
	for _, a := range addrs {
		if a.Is4() {
			n.Run("ip", "addr", "add", Host(a).String(), "dev", link, "scope", "link")
		} else {
			n.Run("ip", "addr", "add", Host(a).String(), "dev", link, "nodad", "noprefixroute", "preferred_lft", "0")
		}
	}
	n.Settle(link)
}

// NodeCacheRules makes the NOTRACK rules that a killed NodeLocal DNSCache leaves for its addresses (KEP-1024), first in their chains as
// it does. Without conntrack, kube-proxy's rules do not see the packets that they match. kind is nft or legacy.
func (n *NetNS) NodeCacheRules(kind string, addrs ...netip.Addr) {
	n.t.Helper()
	for _, a := range addrs {
		var text strings.Builder
		text.WriteString("*raw\n")
		for _, p := range []string{"udp", "tcp"} {
			fmt.Fprintf(&text, "-I PREROUTING -p %s -d %s --dport 53 -j NOTRACK\n-I OUTPUT -p %[1]s -d %[2]s --dport 53 -j NOTRACK\n-I OUTPUT -p %[1]s -s %[2]s --sport 53 -j NOTRACK\n", p, a)
		}
		text.WriteString("COMMIT\n")
		program := "iptables"
		if a.Is6() {
			program = "ip6tables"
		}
		n.RunInput(text.String(), program+"-"+kind+"-restore", "--noflush", "-w")
	}
}
