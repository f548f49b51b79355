package steering

import (
	"fmt"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// wantReady waits until `neardns-agent ready` reports so to the kubelet, with a reason where it is not ready.
func (n *node) wantReady(when string, ready bool, why string) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error { // a start of the program for each look costs fifty times the CPU
		a, err := n.agentStatus()
		return testutil.ErrorIf(err == nil && a.Ready != ready, "%s: ready is %t", when, a.Ready)
	})
	testutil.Eventually(n.t, func() error { return n.isReady(when, ready, why) })
}

func (n *node) isReady(when string, ready bool, why string) error {
	n.t.Helper()
	code, out, stderr := n.run("ready", "--config", n.configFile())
	if want := map[bool]int{true: 0, false: 3}[ready]; code != want || !ready && !strings.Contains(out+stderr, why) {
		return fmt.Errorf("%s: ready exits with %d, want %d and %q: %s%s", when, code, want, why, out, stderr)
	}
	return nil
}

// TestReady takes readiness, by iptables' rules, through ways in which pods are not served: it is what the prober has proven of late, and
// nothing that the agent believes of itself.
func TestReady(t *testing.T) {
	for _, variant := range iptables.Variants() {
		t.Run(string(variant), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, setup{families: testutil.IPv4, proxy: testutil.IPTables, backend: string(variant)})
			n.wantReady("no agent", false, "no agent runs on this node")
			program := "iptables" + strings.TrimPrefix(string(variant), "iptables")
			fresh := func() { // one without earlier losses, for which it would rest
				t.Helper()
				if n.agent != nil {
					n.agent.Kill()
				}
				n.startAgent()
				n.wantReady("served", true, "")
			}

			fresh()
			testutil.Eventually(t, func() error { // it is mended each time
				n.Host.Run(program, "-w", "-t", "raw", "-F")
				return n.isReady("switch missing", false, "no rule took the lease datagram")
			})
			n.wantReady("switch mended", true, "")

			fresh()
			undo := n.deafen("udp", 4)
			n.wantReady("lease lapsed", false, "no lease for "+steering4.String()+" over udp")
			undo()
			n.wantReady("heard again", true, "")

			fresh()
			n.Host.RunInput(fmt.Sprintf(firewall, "drop"), "nft", "-f", "-")
			n.wantReady("way broken", false, "firewall")
			n.Host.Run("nft", "delete", "table", "inet", "foreign")
			n.wantReady("way mended", true, "")

			fresh()
			n.agent.Stop()
			n.wantReady("hung", false, "does not answer")
			n.agent.Cont()
			n.wantReady("goes on", true, "")
		})
	}
}
