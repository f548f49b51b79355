package environment

import (
	"fmt"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// repaired makes a fault while a pod queries, and waits until look finds what it did before and the cache answers.
func (n *node) repaired(name string, fault []string, look func() string) {
	n.t.Helper()
	before := look()
	pods := n.keepAsking()
	n.Host.Run(fault...)
	n.awaitLike(name, before, look)
	n.awaitReady()
	n.awaitCached(name)
	pods.end(name)
}

func (n *node) awaitLike(name, before string, look func() string) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		got := look()
		return testutil.ErrorIf(got != before, "%s: not repaired:\n%s\nwant\n%s", name, got, before)
	})
	if n.Proxy.Mode() == testutil.IPTables && strings.Contains(name, "flush") { // kube-proxy's next sync
		for i, a := range n.ClusterDNS() {
			testutil.InstallProxy(n.t, n.Host, testutil.IPTables, testutil.DNSService(a, n.KubeDNSAddrs()[i])...)
		}
	}
}

// link is what ip(8) shows of the agent's link.
func (n *node) link() string {
	out, _ := n.Host.TryRun("", "sh", "-c", "ip -o link show neardns0 | sed 's/^[0-9]*: //; s/qlen.*//; s/link.*//'; ip -o address show dev neardns0 scope global; ip -o address show dev neardns0 scope link | grep inet.169")
	var lines []string
	for line := range strings.Lines(out) {
		if _, after, ok := strings.Cut(line, ": neardns0"); ok { // the index changes with the link
			line = after
		}
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

// TestLinkFaults deletes the link, sets it down, removes an address and adds a foreign one, and deletes the prober's link.
func TestLinkFaults(t *testing.T) {
	n := newNode(t, testutil.Dual, testutil.NFTables)
	n.start()
	n.wantHealthy("at first")
	for _, f := range []struct{ name, command string }{
		{"link deleted", "ip link del neardns0"},
		{"link set down", "ip link set neardns0 down"},
		{"address removed", "ip address del 169.254.20.11/32 dev neardns0"},
		{"foreign address added", "ip address add 192.0.2.77/32 dev neardns0"},
	} {
		n.repaired(f.name, strings.Fields(f.command), n.link)
	}
	n.repairs("link", 4)
	n.repaired("prober deleted", strings.Fields("ip link del neardns-prober"), func() string {
		_, err := n.Host.TryRun("", "ip", "link", "show", "neardns-prober")
		return fmt.Sprint(err)
	})
	n.wantHealthy("at last")
}

// TestRuleFaults deletes and edits the host table as nft and iptables users do.
func TestRuleFaults(t *testing.T) {
	n := newNode(t, testutil.Dual, testutil.IPTables)
	n.start()
	look := func() string {
		out, _ := n.Host.TryRun("", "sh", "-c", "nft -s -t list table inet neardns; for s in ours4 ours6 cluster4 cluster6 uplinks; do nft list set inet neardns $s 2>/dev/null || nft list map inet neardns $s; done")
		return out
	}
	script := func(text string) []string { return []string{"sh", "-c", text} }
	for _, f := range []struct {
		name    string
		command []string
	}{
		{"ruleset flushed", script("nft flush ruleset")},
		{"table deleted", script("nft delete table inet neardns")},
		{"table flushed", script("nft flush table inet neardns")},
		{"rule deleted", script("nft delete rule inet neardns switch4 handle $(nft -a list chain inet neardns switch4 | awk '/handle/ && !/chain/ {print $NF; exit}')")},
		{"rule added", script("nft insert rule inet neardns switch4 drop")},
		{"set element removed", script("nft delete element inet neardns ours4 '{ 169.254.20.11 }'")},
		{"iptables flushed", script("set -e; for b in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do $b -w -F; $b -w -t raw -F; done")},
	} {
		n.repaired(f.name, f.command, look)
	}
	n.repairs("rules", 6)
	if a, err := n.agentStatus(); err != nil || !strings.Contains(a.Repair, "rules") {
		t.Errorf("status does not name the last repair: %+v, %v", a, err)
	}
	n.wantHealthy("at last")
}

// TestRepairFight has another program delete our table whenever it is there. Pods are answered all the same, and status and
// doctor name the fight. TestRepairsAreBounded (agent/internal/node) bounds the agent's work and what it logs.
func TestRepairFight(t *testing.T) {
	n := newNode(t, testutil.IPv4, testutil.NFTables)
	n.start()
	pods := n.keepAsking()
	// One that deletes the table whenever it sees it, and ends with the test.
	foe := n.Host.StartAgent("sh", "-c", "while :; do nft delete table inet neardns 2>/dev/null; sleep 0.1; done")
	testutil.Eventually(t, func() error {
		if a, err := n.agentStatus(); err != nil || !strings.Contains(a.Faults["rules"], "another program undid the repair 10 times") {
			return fmt.Errorf("the fight is no fault: %+v, %w", a, err)
		}
		return nil
	})
	n.wantSeen("a fight", "FAIL", "agent", "another program undid the repair")
	before := n.repairs("rules", 0) // the pauses from here on: TestFlapping (agent/internal/node/backoff)
	testutil.Eventually(t, func() error {
		got := n.repairs("rules", 0) - before
		return testutil.ErrorIf(got < 2, "%d more repairs", got)
	})
	foe.Kill()
	n.awaitCached("the fight is over")
	pods.end("fight")
}

// TestManyRejects has rules repaired next to 2,000 Services without endpoints, which kube-proxy in iptables mode rejects one
// by one. TestScaleRepair (integration/steering) measures how long it takes.
func TestManyRejects(t *testing.T) {
	n := newNode(t, testutil.IPv4, testutil.IPTables)
	services := testutil.ManyServices(true, 2000)
	for i := range services {
		services[i].Endpoints = nil
	}
	n.Proxy.Add(services...)
	n.start()
	look := func() string {
		out, _ := n.Host.TryRun("", "nft", "-s", "-t", "list", "table", "inet", "neardns")
		return out
	}
	n.repaired("table deleted beside 2,000 rejects", []string{"nft", "delete", "table", "inet", "neardns"}, look)
	if got := strings.Count(n.Host.Run("iptables-save", "-t", "filter"), "has no endpoints"); got != len(services) {
		t.Errorf("%d rejects are left, want %d", got, len(services))
	}
}
