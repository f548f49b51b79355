//go:build cutoff

package nodelocal_test

import (
	"testing"
	"time"

	"github.com/neardns/neardns/integration/cutoff"
	"github.com/neardns/neardns/pkg/testutil"
)

// lease is the limit of a lease that goes here: a client's SERVFAIL makes the agent query, and that comes after the 5 s that CoreDNS's
// forward takes.
const lease = 10 * time.Second

// The cuts of integration/steering that may happen to a pod that names NodeLocal DNSCache's address, with neardns in node-cache's
// place. What it queries itself and another program drops is dropped with and without us, and so is what it queries when no process holds
// the address. A resolver outside that the Corefile names is queried as node-cache queries it.
var cuts = []struct {
	name  string
	limit time.Duration
	do    func(n *node, pod *testutil.Pod, agent *testutil.Process)
}{
	{"agent ↛ kube-dns (the host's OUTPUT)", lease, func(n *node, _ *testutil.Pod, _ *testutil.Process) {
		n.both(func(program string, i int) {
			for _, proto := range []string{"udp", "tcp"} {
				n.Host.Run(program, "-w", "-I", "OUTPUT", "-d", n.KubeDNSAddrs()[i].String(), "-p", proto, "--dport", "53", "-j", "DROP")
			}
		})
	}},
	{"agent ↛ kube-dns (no route from the host)", lease, func(n *node, _ *testutil.Pod, _ *testutil.Process) {
		n.both(func(program string, _ int) {
			for _, proto := range []string{"udp", "tcp"} {
				n.Host.Run("ip", map[string]string{"iptables": "-4", "ip6tables": "-6"}[program], "rule", "add", "pref", "10", "iif", "lo", "ipproto", proto, "dport", "53", "unreachable")
			}
		})
	}},
	{"kube-dns ↛ node (its policy admits pods alone)", cutoff.Evidence, func(n *node, _ *testutil.Pod, _ *testutil.Process) {
		n.both(func(program string, i int) {
			for _, proto := range []string{"udp", "tcp"} {
				n.KubeDNS.Run(program, "-w", "-A", "INPUT", "-p", proto, "--dport", "53", "!", "-s", n.PodRange(n.KubeDNSAddrs()[i].Is4()).String(), "-j", "DROP")
			}
		})
	}},
	{"pod ↛ agent, dropped in INPUT", cutoff.Evidence, func(n *node, pod *testutil.Pod, _ *testutil.Process) {
		for _, a := range pod.Addrs {
			from := testutil.Host(a).Addr()
			for _, ours := range append(n.locals(), n.ClusterDNS()...) {
				if from.Is4() == ours.Is4() {
					n.Host.Run(map[bool]string{true: "iptables", false: "ip6tables"}[from.Is4()], "-w", "-I", "INPUT", "-s", from.String(), "-d", ours.String(), "-j", "DROP")
				}
			}
		}
	}},
	{"agent dead", cutoff.None, func(_ *node, _ *testutil.Pod, agent *testutil.Process) { agent.Kill() }},
	{"agent hung", cutoff.Lease, func(_ *node, _ *testutil.Pod, agent *testutil.Process) { agent.Stop() }},
}

// both calls f for each family, with its program and its place in the node's lists.
func (n *node) both(f func(program string, i int)) {
	for i, a := range n.ClusterDNS() {
		f(map[bool]string{true: "iptables", false: "ip6tables"}[a.Is4()], i)
	}
}

// TestCutOff tries every cut, and draws the table. It is what `make cutoff` runs.
func TestCutOff(t *testing.T) {
	var rows []string
	cells := make([][]cutoff.Cell, len(cuts))
	t.Run("cells", func(t *testing.T) {
		for i, c := range cuts {
			rows = append(rows, c.name)
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				n := cell{testutil.Dual, testutil.IPTables, ""}.node(t)
				pod := n.pod()
				agent, all := n.serveBothFamilies()
				n.awaitLog(agent, 0, "fallback verified")
				got := cutoff.Watch(t, pod.NetNS, fresh, func() { c.do(n, pod, agent) }, all...)
				cells[i] = []cutoff.Cell{got}
				t.Logf("%s; last lost: %s", got, got.Worst)
				if !got.Within(c.limit) {
					t.Errorf("clients are not answered as without neardns within %v: %s; last lost: %s", c.limit, got, got.Worst)
				}
			})
		}
	})
	cutoff.Draw(t, "nodelocal", rows, []string{"in node-cache's place"}, cells)
}
