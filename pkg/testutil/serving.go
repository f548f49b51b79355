package testutil

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// Settle waits until a link's IPv6 addresses serve. One without duplicate detection may be bound at once, but the kernel
// adds its route of type local by a work queue, which a busy machine keeps waiting: until then what comes for the address
// is discarded. (The agent need not care: its prober's queries are discarded too, and no lease begins.)
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

// NodeCacheRules makes the rules that a killed NodeLocal DNSCache leaves for its addresses (KEP-1024), first in their chains as it
// does: without conntrack kube-proxy never sees what they match. kind is nft or legacy.
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
