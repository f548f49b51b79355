package steering

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// The second Service for kube-dns's pods, whom the agent queries while the first one's address is its own.
var upstream4, upstream6 = netip.MustParseAddr("10.96.0.50"), netip.MustParseAddr("fd00:96::50")

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
				n.configure("backend: " + backend + "\n" + n.configureOnLink())
				p := n.addOldPod()
				c := client{p.NetNS, p.addrs}
				cluster := targets(n.ClusterDNS()...)
				n.wantFallback(c, "agent never started", cluster...)

				n.launchAgent()
				testutil.Eventually(t, func() error {
					s, err := n.agentStatus()
					return testutil.ErrorIf(err != nil || !s.Ready, "the agent is not ready: %+v, %w\n%s", s, err, n.agent.Output())
				})
				n.wantSteered(c, "agent up", cluster...)
				n.wantUntracked(p, cluster...)
				local := proxy == testutil.IPTables || backend == nftables // the local addresses have a fallback, too
				if local {
					n.wantHealthy()
				} else {
					n.wantFinding("FAIL  fallback     to " + upstream4.String() + " is not verified")
				}
				n.agent.Kill()
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

// wantFinding waits until the doctor reports a finding.
func (n *node) wantFinding(finding string) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		_, out, _ := n.run("doctor", "--config", n.configFile(), "--cni-conf", n.path("none"))
		return testutil.ErrorIf(!strings.Contains(out, finding), "the doctor does not report %q:\n%s", finding, out)
	})
}

// wantHealthy waits until the doctor finds nothing wrong on a node that serves: a lease that is granted or withdrawn while it reads looks
// like a fault. Networks and the machine's own filters are not examined.
func (n *node) wantHealthy() {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		code, out, errs := n.run("doctor", "--config", n.configFile(), "--cni-conf", n.path("none"), "--cni-bin", n.path("none"))
		if code != 0 || !strings.Contains(out, "OK    rules ") || strings.Contains(out, "FAIL  ") {
			return fmt.Errorf("the doctor of a healthy node: exit code %d\n%s%s", code, out, errs)
		}
		return nil
	})
}

// configureOnLink gives kube-dns's pods a second Service, and returns the lines of a NodeConfig that put the first one's address on
// the link.
func (n *node) configureOnLink() string {
	n.t.Helper()
	var services []testutil.Service
	for i, a := range []netip.Addr{upstream4, upstream6} {
		for _, one := range testutil.DNSService(a, n.KubeDNSAddrs()[i]) {
			one.Name = "kube-dns-upstream"
			services = append(services, one)
		}
	}
	n.Proxy.Add(services...)
	return fmt.Sprintf("link: {clusterDNSOnLink: true}\nupstreams: {cluster: [%q, %q], external: []}\n", upstream4, upstream6)
}
