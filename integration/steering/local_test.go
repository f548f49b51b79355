package steering

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestNameserverLocal is the life of a pod whose resolv.conf was made to name the node's local addresses: it queries whom its file names,
// and is answered whether the agent never started, serves, was killed, hangs, goes on by another configuration or is taken off the node.
func TestNameserverLocal(t *testing.T) {
	for _, backend := range chosen(envBackends, nftables, string(iptables.NFT), string(iptables.Legacy)) {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			s := setup{families: testutil.Dual, proxy: testutil.IPTables}
			if backend != nftables {
				s.backend = backend
			}
			sandboxes := t.TempDir()
			s.plugin = object{"dns": object{"nameservers": []string{"local"}}, "resolvConfPaths": []string{filepath.Join(sandboxes, "{id}", "resolv.conf")}}
			n := newNode(t, s)
			given := resolvconf.Settings{Searches: n.searches(), Options: []string{"ndots:5"}}
			for _, a := range n.ClusterDNS() {
				given.Nameservers = append(given.Nameservers, a.String())
			}
			text, err := resolvconf.Parse(nil).With(given)
			testutil.Must(t, err)
			file := filepath.Join(sandboxes, "pod1-0123456789abcdef", "resolv.conf")
			testutil.WriteFile(t, file, string(text.Bytes()))
			// named are the targets that the pod's file names by now.
			named := func(want ...netip.Addr) []target {
				now, err := resolvconf.Parse([]byte(testutil.ReadFile(t, file))).Settings()
				testutil.Must(t, err)
				var at []netip.Addr
				for _, s := range now.Nameservers {
					at = append(at, netip.MustParseAddr(s))
				}
				if len(at) != len(want) || at[0] != want[0] || at[1] != want[1] || strings.Join(now.Searches, " ") != strings.Join(given.Searches, " ") || !slices.Contains(now.Options, "ndots:5") {
					t.Errorf("the pod has %+v, want nameservers %v and the rest as it was", now, want)
				}
				return targets(at...)
			}

			p := n.addPod(nil)
			c, at := p.client(), named(local4, local6)
			n.wantFallback(c, "agent never started", at...)
			n.startAgent()
			n.wantSteered(c, "agent up", at...)
			n.prints(cli.Good, "pods", "served")
			n.prints(cli.Good, "status", "served")
			n.kill()
			n.wantFallback(c, "agent killed", at...)
			n.startAgent()
			n.wantSteered(c, "agent up again", at...)
			n.agent.Stop()
			n.awaitFallback(c, "agent stopped", at...)
			n.agent.Cont()
			n.wantSteered(c, "agent goes on", at...)
			testutil.Must(t, n.agent.Terminate(testutil.Patience()))

			// The pod's file outlives the configuration that it was made by.
			other := strings.NewReplacer(local4.String(), "169.254.20.30", local6.String(), "fd00:90de:d95::1e").Replace(n.read("node.yaml"))
			n.write("node.yaml", other)
			n.launchAgent()
			n.awaitReady()
			n.wantFallback(c, "its local addresses are no more configured", at...)
			n.wantSteered(c, "the cluster DNS addresses", targets(n.ClusterDNS()...)...)
			n.agent.Kill()
			testutil.Check(t, p.in(podfile.Steered))

			n.prints(cli.Good, "cleanup --cni-conf "+n.path("none"))
			n.wantFallback(c, "cleaned up", named(n.ClusterDNS()[0], n.ClusterDNS()[1])...)
		})
	}
}

// TestCleanupKeepsTheSwitch: a pod that names a local address by its own dnsConfig has DNS after a cleanup, too, which fails by the pod's
// name until the pod has ended.
func TestCleanupKeepsTheSwitch(t *testing.T) {
	t.Parallel()
	n := newNode(t, setup{proxy: testutil.IPTables, nameservers: []netip.Addr{local4}})
	n.startAgent()
	p := n.addPod(nil)
	n.wantSteered(p.client(), "agent up", targets(local4)...)
	testutil.Must(t, n.agent.Terminate(testutil.Patience()))
	for range 2 {
		n.prints(cli.Failed, "cleanup --cni-conf "+n.path("none"), "pod default/pod1 ", "names 169.254.20.10 in its own DNS settings")
		n.wantFallback(p.client(), "cleanup refused", targets(local4)...)
	}
	p.del()
	n.prints(cli.Good, "cleanup --cni-conf "+n.path("none"))
}
