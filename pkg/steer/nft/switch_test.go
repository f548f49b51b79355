package nft_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// harms keep the agent from answering while its lease is granted.
func harms() map[string]func(*nftRig) {
	return map[string]func(*nftRig){
		"hung":      func(r *nftRig) { r.Agent.Behave(testutil.Behaviour{Drop: true}) }, // as after SIGSTOP: the sockets are bound
		"link gone": func(r *nftRig) { r.Node.Host.DelLink("neardns0") },
	}
}

// A lease that is not renewed expires, and kube-dns answers from then on: if the agent hangs, and if its link is deleted under a
// bound socket.
func TestSwitchAfterALapse(t *testing.T) {
	mode(t, testutil.NFTables, func(t *testing.T, o testutil.Options) {
		for what, harm := range harms() {
			t.Run(what, func(t *testing.T) {
				r := newRig(t, o, func(h *steer.Host) { h.Lifetime = 300 * time.Millisecond })
				pod := r.Steered("pod")
				r.Serve()
				harm(r)
				for _, server := range r.Servers() {
					testutil.Eventually(t, func() error {
						_, err := testutil.Ask(pod.NetNS, server, "a.cluster.local", dns.TypeA, "udp", testutil.AskOptions{Timeout: testutil.Silence})
						return err
					})
				}
				r.Want("KUBEDNS", pod.NetNS, "lapsed", r.Servers()...)
			})
		}
	})
}

// The switch distinguishes two cluster DNS addresses of a family, and one that is no longer served but that a pod still uses.
func TestManyRedirects(t *testing.T) {
	mode(t, testutil.IPTables, func(t *testing.T, o testutil.Options) {
		second, old := netip.MustParseAddr("10.96.0.11"), netip.MustParseAddr("10.96.0.12")
		var other steer.Redirect
		r := newRig(t, o, func(h *steer.Host) {
			with, err := steer.Complete(append(slices.Clone(h.Redirects), steer.Redirect{ClusterDNS: second}, steer.Redirect{ClusterDNS: old}))
			must(t, err)
			h.Redirects, h.FallbackOnly = with[:3], with[3:]
			other = with[3]
		})
		r.Node.Proxy.Add(testutil.DNSService(second, r.Node.KubeDNSAddrs()[0])...)
		r.Node.Proxy.Add(testutil.DNSService(old, r.Node.KubeDNSAddrs()[0])...)
		pod := r.Pod("pod")
		must(t, open(t, pod.NetNS).Apply(steer.Pod{Redirects: append(slices.Clone(r.Host.Redirects), other)}))
		gone := netip.AddrPortFrom(old, 53)
		r.Want("KUBEDNS", pod.NetNS, "no lease", append(r.ClusterDNS(), gone)...)
		r.Serve()
		r.Want("AGENT", pod.NetNS, "lease", r.ClusterDNS()...)
		r.Want("KUBEDNS", pod.NetNS, "taken out of the configuration", gone)
		r.Withdraw()
		must(t, r.Lease.Renew(r.Host.Redirects[2].Steering, steer.UDP))
		must(t, r.Lease.Renew(r.Host.Redirects[2].Steering, steer.TCP))
		r.Want("AGENT", pod.NetNS, "lease of the second", netip.AddrPortFrom(second, 53))
		r.Want("KUBEDNS", pod.NetNS, "no lease of the first", r.ClusterDNS()[0])
	})
}
