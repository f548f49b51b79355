package steering

import (
	"errors"
	"strings"
	"testing"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestClusterDNSOnLink is the KEP's arrangement: the cluster DNS address on the link, pods as they were, kube-proxy's translation
// for the fallback.
func TestClusterDNSOnLink(t *testing.T) {
	for _, backend := range []string{nftables, string(iptables.NFT), string(iptables.Legacy)} {
		for _, proxy := range []testutil.ProxyMode{testutil.IPTables, testutil.NFTables} {
			if backend == string(iptables.Legacy) && proxy == testutil.NFTables {
				continue // as iptables-nft: another table than kube-proxy's
			}
			t.Run(backend+"/"+string(proxy), func(t *testing.T) {
				s := setup{families: testutil.Dual, proxy: proxy}
				n := newNode(t, s)
				n.configure("backend: " + backend + "\nlink: {clusterDNSOnLink: true}\n" + n.addUpstreams())
				p := n.addOldPod()
				c := client{p.NetNS, p.addrs}
				cluster := targets(n.ClusterDNS()...)
				n.wantFallback(c, "agent never started", cluster...)

				n.launchAgent()
				n.awaitStatus(func(a *agentStatus) error {
					return testutil.ErrorIf(!a.Ready, "the agent is not ready: %+v\n%s", a, n.agent.Output())
				})
				n.wantSteered(c, "agent up", cluster...)
				n.wantUntracked(p, cluster...)
				local := proxy == testutil.IPTables || backend == nftables // the local addresses have a fallback, too
				if local {
					n.wantHealthy()
				} else {
					n.prints(anyCode, n.doctor(), "FAIL  fallback     to "+upstream4.String()+" is not verified")
				}
				n.kill()
				n.wantFallback(c, "agent killed", cluster...)
				if local {
					n.wantFallback(client{ns: p.NetNS}, "agent killed, local addresses", targets(n.locals()...)...)
				}

				n.launchAgent()
				n.wantSteered(c, "agent up again", cluster...)
				n.agent.Stop()
				n.awaitFallback(c, "agent stopped", cluster...)
				n.agent.Cont()
				n.wantSteered(c, "agent goes on", cluster...)
				testutil.Must(t, n.agent.Terminate(testutil.Patience()))
				n.wantFallback(c, "lease withdrawn", cluster...)
				n.prints(cli.Good, "cleanup --cni-conf "+n.path("none"))
				n.wantFallback(c, "cleaned up", cluster...)
			})
		}
	}
}

// wantHealthy waits until the doctor finds nothing wrong on a node that serves: a lease that is granted or withdrawn while it reads looks
// like a fault. Networks and the machine's own filters are not examined.
func (n *node) wantHealthy() {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		out, err := n.printed(cli.Good, n.doctor()+" --cni-bin "+n.path("none"), "OK    rules ")
		return errors.Join(err, testutil.ErrorIf(strings.Contains(out, "FAIL  "), "the doctor of a healthy node:\n%s", out))
	})
}
