// Package nodelocal sets a node up as NodeLocal DNSCache does (KEP-1024), around a stock CoreDNS: what neardns is measured
// beside. It owns the link, its addresses, the rules that keep them out of conntrack, and the Corefile of the Kubernetes
// manifest nodelocaldns.yaml.
//
// NodeLocal's node-cache looks after its link and rules once a minute. Here no program does: within a run of seconds it is the
// same, and a caller puts back by Install what a fault took away.
//
// Failure policy: whatever goes wrong ends the test or program through testutil.TB.
package nodelocal

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/neardns/neardns/pkg/testutil"
)

// Link is the name of its link: a bridge without ports here, since not every kernel has dummy links.
const Link = "nodelocaldns"

// Install makes the link with the addresses that the cache listens on, and the rules for each. What is there stays.
func Install(host *testutil.NetNS, addrs ...netip.Addr) { InstallBy(host, "iptables", addrs...) }

// InstallBy does so by another program than what is iptables on this machine, such as iptables-legacy.
func InstallBy(host *testutil.NetNS, iptables string, addrs ...netip.Addr) {
	if _, err := host.Netlink().LinkByName(Link); err != nil {
		host.Bridge(Link)
	}
	rules := host.Run(iptables+"-save", "-t", "raw")
	for _, a := range addrs {
		if !strings.Contains(host.Run("ip", "-o", "address", "show", "dev", Link), " "+testutil.Host(a).String()+" ") {
			host.AddAddr(Link, testutil.Host(a))
		}
		if !strings.Contains(rules, " "+testutil.Host(a).String()+" ") {
			host.RunInput(NoTrack(a), iptables+"-restore", "--noflush", "-w")
		}
	}
}

// NoTrack is KEP-1024's rules for one address of the cache, for iptables-restore. They stand first, as node-cache puts them.
func NoTrack(a netip.Addr) string {
	var raw, filter strings.Builder
	for _, p := range []string{"udp", "tcp"} {
		to, from := fmt.Sprintf("-d %s -p %s --dport 53", a, p), fmt.Sprintf("-s %s -p %s --sport 53", a, p)
		fmt.Fprintf(&raw, "-I PREROUTING %s -j NOTRACK\n-I OUTPUT %s -j NOTRACK\n-I OUTPUT %s -j NOTRACK\n", to, from, to)
		fmt.Fprintf(&filter, "-I INPUT %s -j ACCEPT\n-I OUTPUT %s -j ACCEPT\n", to, from)
	}
	return "*raw\n" + raw.String() + "COMMIT\n*filter\n" + filter.String() + "COMMIT\n"
}

// Corefile is the manifest's, its placeholders filled in: the cache listens on local and clusterDNS and queries upstream. "."
// asks the same upstream, since there is no outside here.
func Corefile(local, clusterDNS, upstream netip.Addr) string {
	return fmt.Sprintf(corefile, local, clusterDNS, upstream)
}

const corefile = `cluster.local:53 {
    errors
    cache {
        success 9984 30
        denial 9984 5
    }
    reload
    loop
    bind %[1]s %[2]s
    forward . %[3]s {
        force_tcp
    }
    prometheus :9253
    health %[1]s:8080
}
in-addr.arpa:53 {
    errors
    cache 30
    reload
    loop
    bind %[1]s %[2]s
    forward . %[3]s {
        force_tcp
    }
    prometheus :9253
}
ip6.arpa:53 {
    errors
    cache 30
    reload
    loop
    bind %[1]s %[2]s
    forward . %[3]s {
        force_tcp
    }
    prometheus :9253
}
.:53 {
    errors
    cache 30
    reload
    loop
    bind %[1]s %[2]s
    forward . %[3]s
    prometheus :9253
}
`
