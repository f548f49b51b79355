package nft_test

import (
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// A client queries the local and the cluster DNS address from one source port, as musl does: each answer comes from the address that
// was queried, in every state, in both orders, in a steered pod and in a plain one.
func TestLocalAndClusterFromOnePort(t *testing.T) {
	modes(t, func(t *testing.T, o testutil.Options) {
		r := newRig(t, o)
		pods := map[string]*testutil.NetNS{"steered": r.Steered("steered").NetNS, "plain": r.Pod("plain").NetNS}
		port := uint16(41000)
		turns := func(when string, local, steered, plain string) {
			t.Helper()
			for kind, pod := range pods {
				cluster := plain
				if kind == "steered" {
					cluster = steered
				}
				for i := range r.Host.Redirects {
					a, b := r.ClusterDNS()[i], r.Local()[i]
					for _, order := range [][]netip.AddrPort{{a, b, a, b}, {b, a, b, a}} {
						port++
						o := testutil.AskOptions{Source: netip.AddrPortFrom(netip.Addr{}, port), Abort: true}
						s, err := testutil.OpenUDP(pod, a.Addr().Is4(), o)
						must(t, err)
						want := map[netip.AddrPort]string{a: cluster, b: local}
						for _, server := range order {
							by(t, want[server], "%s, %s, %s from port %d", when, kind, server, port)(s.Ask(server, "a.cluster.local", dns.TypeTXT))
						}
						s.Close()
						for _, server := range order {
							by(t, want[server], "%s, %s, %s over tcp from port %d", when, kind, server, port)(
								testutil.Ask(pod, server, "a.cluster.local", dns.TypeTXT, "tcp", o))
						}
					}
				}
			}
		}
		turns("no agent", "KUBEDNS", "KUBEDNS", "KUBEDNS")
		r.Serve()
		turns("lease", "AGENT", "AGENT", "KUBEDNS")
		r.Withdraw()
		turns("lease withdrawn", "KUBEDNS", "KUBEDNS", "KUBEDNS")
		for _, l := range r.Host.Locals { // only the local address
			must(t, r.Lease.Renew(l.Address, 17))
			must(t, r.Lease.Renew(l.Address, 6))
		}
		turns("lease of the local address alone", "AGENT", "KUBEDNS", "KUBEDNS")
		r.Kill()
		turns("killed, that lease stands", "KUBEDNS", "KUBEDNS", "KUBEDNS")
	})
}
