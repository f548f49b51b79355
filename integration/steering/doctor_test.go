package steering

import (
	"fmt"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestDoctorOnAHealthyNode has the doctor look at a node where nothing is wrong, with pods steered and with the cluster DNS address on the
// link: it must compare link, rules and leases with what the agent itself works by.
func TestDoctorOnAHealthyNode(t *testing.T) {
	for _, backend := range []string{nftables, string(iptables.NFT)} {
		for name, onLink := range map[string]bool{"steered": false, "on the link": true} {
			t.Run(backend+"/"+name, func(t *testing.T) {
				n := newNode(t, setup{families: testutil.Dual, proxy: testutil.IPTables})
				more := "backend: " + backend + "\n"
				if onLink {
					more += n.configureOnLink()
				}
				n.configure(more)
				n.launchAgent()
				testutil.Eventually(t, func() error {
					if a, err := n.agentStatus(); err != nil || !a.Ready || len(a.Proven) == 0 || len(a.Faults) > 0 {
						return fmt.Errorf("the agent is not healthy: %+v %w\n%s", a, err, n.agent.Output())
					}
					return nil
				})
				testutil.Eventually(t, func() error { // where the machine lets the agent wait, leases come and go
					code, text, errs := n.run("doctor", "--config", n.configFile(), "--cni-conf", n.path("none"))
					if code != 0 || strings.Contains(text, "FAIL") || !strings.Contains(text, "OK    rules") {
						return fmt.Errorf("doctor ends with %d:\n%s%s", code, text, errs)
					}
					return nil
				})
			})
		}
	}
}
