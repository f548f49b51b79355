//go:build scale

package steering

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestScaleRepair measures a repair, the median of three, and its peak memory next to 2,000 Services without endpoints, of which kube-proxy
// has a rule each in the filter table: an agent reads that table, where its policy may drop. Within the proposal's limit of memory the
// kernel kills nothing.
func TestScaleRepair(t *testing.T) {
	const empty = 2000
	f := &figures{t: t, name: "repair", drawing: drawing{Head: []string{
		"back end", "a repair takes", "most memory at the start, with iptables' programs", "the same after repairs", "agent's process alone",
	}}}
	for _, backend := range []string{"", "iptables-nft", "iptables-legacy"} {
		name := backend
		if name == "" {
			name = nftables
		}
		t.Run(name, func(t *testing.T) {
			n := newNode(t, setup{families: testutil.IPv4, proxy: testutil.IPTables, attach: testutil.PTP, proven: true, backend: backend})
			program := "iptables-restore"
			if backend == "iptables-legacy" {
				program = "iptables-legacy-restore"
			}
			var b strings.Builder
			b.WriteString("*filter\n:INPUT DROP [0:0]\n:KUBE-EMPTY - [0:0]\n-A INPUT -j KUBE-EMPTY\n-A INPUT -i lo -j ACCEPT\n-A INPUT -p icmp -j ACCEPT\n" +
				"-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT\n")
			address := netip.MustParseAddr("10.111.0.0")
			for i := range empty {
				address = address.Next()
				fmt.Fprintf(&b, "-A KUBE-EMPTY -d %s/32 -p tcp -m comment --comment \"load/service-%d:http has no endpoints\" -m tcp --dport 80 -j REJECT\n", address, i)
			}
			b.WriteString("COMMIT\n")
			n.Host.RunInput(b.String(), program, "--noflush")
			group := testutil.NewCgroup(t, "memory")
			group.LimitMemory(proposalMemory)
			n.startIn(group)
			before := group.PeakMemory()
			remove := func() {
				if backend == "" {
					n.Host.Run("nft", "delete", "table", "inet", "neardns")
				} else {
					n.flush(strings.TrimSuffix(program, "-restore"), "raw")
				}
			}
			var took []time.Duration
			for range 3 {
				remove()
				took = append(took, until(t, n.held))
			}
			slices.Sort(took)
			f.row(name, took[1], mebi(before), mebi(group.PeakMemory()), mebi(memory(t, n.agent.PID(), "VmHWM")))
			if kills := group.OOMKills(); kills > 0 {
				t.Errorf("the kernel killed %d processes at the memory limit of %s", kills, mebi(proposalMemory))
			}
			testutil.Check(t, n.agent.Terminate(patience))
		})
	}
	f.keep()
}
