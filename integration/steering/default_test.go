package steering

import (
	"testing"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestDefaultInstall takes an agent with a new installation's NodeConfig through its life: a pod that ran before it is adopted, a new one
// is steered, the kernel answers hits of both, and each loses them under a policy and gets them back. kube-dns answers while the agent
// hangs or is dead, and after the uninstall.
func TestDefaultInstall(t *testing.T) {
	for _, s := range []setup{
		{families: testutil.Dual, attach: testutil.PTP},
		{families: testutil.IPv4, proxy: testutil.IPTables, attach: testutil.BridgeCNI},
		{families: testutil.IPv4, proxy: testutil.IPTables, attach: testutil.PTP, backend: "iptables-nft"},
	} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			needBPF(t)
			s.install, s.proven = true, true
			n := newNode(t, s)
			older := n.addRunningPods(1, nil)[0]
			bare := client{older.NetNS, older.addrs}
			cluster := targets(n.ClusterDNS()...)
			n.wantFallback(bare, "before the agent", cluster...)

			n.startAgent()
			testutil.Eventually(t, func() error { return older.adopted(podfile.Steered) })
			younger := n.addPod(nil)
			pods := []*pod{older, younger}
			n.wantServed("default", pods...)

			hot := "ttl-600." + freshName()
			first := &denied{node: n, p: older, other: younger, at: cluster[0], hot: hot}
			second := &denied{node: n, p: younger, other: older, at: cluster[0], hot: hot}
			first.query()
			first.cutOff("all but to kube-dns")
			second.cutOff("all DNS")

			n.agent.Stop()
			n.prints(cli.Degraded, "ready", "does not answer")
			for _, p := range pods {
				n.awaitFallback(p.client(), "agent stopped", n.all()...)
			}
			n.agent.Cont()
			n.wantServed("agent goes on", pods...)
			n.awaitReady()
			n.kill()
			for _, p := range pods {
				n.wantFallback(p.client(), "agent killed", n.all()...)
			}
			n.startAgent()
			n.wantServed("agent is back", pods...)

			testutil.Must(t, n.agent.Terminate(testutil.Patience()))
			if len(n.pinned()) == 0 {
				t.Error("no kernel hits are there for the next agent")
			}
			n.prints(cli.Good, n.cleanup())
			for _, p := range pods {
				p.wantNoRules("uninstalled")
				n.wantFallback(client{p.NetNS, p.addrs}, "uninstalled", cluster...)
			}
			testutil.Equal(t, "files left", []string{}, append(n.files(), n.pinned()...))
		})
	}
}

// wantServed waits until each pod is answered by the cache over all addresses and protocols, and by the kernel over UDP.
func (n *node) wantServed(when string, pods ...*pod) {
	n.t.Helper()
	n.wantInKernel(len(pods), 0)
	for _, p := range pods {
		n.wantSteered(p.client(), when, n.all()...)
		for _, at := range n.all() {
			if at.network == "udp" {
				n.heat(p, at, freshName())
			}
		}
	}
}

// cutOff lays a policy for the first pod: its hits end, the agent names it, and kube-dns answers it if the policy lets it. Without the
// policy it is answered as before.
func (d *denied) cutOff(policy string) {
	d.t.Helper()
	d.hits("before the policy", d.p)
	allow := d.deny(d.p, policy)
	d.noHits(policy)
	d.end(policy)
	d.prints(anyCode, "doctor", "default/"+d.p.name)
	allow()
	d.hits("without the policy", d.p)
	d.wantSteered(d.p.client(), "without the policy", targets(d.at.addr)...)
}
