package environment

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestPolicyDrop sets the host's iptables policies to DROP, in both kinds of iptables. The agent lets its own addresses
// through: at once where events tell of it, within a lease's loss and return where the kernel sends no event (legacy).
func TestPolicyDrop(t *testing.T) {
	for _, kind := range []string{"nft", "legacy"} {
		t.Run(kind, func(t *testing.T) {
			n := newNode(t, testutil.IPv4, testutil.NFTables)
			n.start()
			ipt := "iptables-" + kind
			// What a node's administrator lets through before he drops the rest.
			n.Host.Run(ipt, "-w", "-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT")
			n.Host.Run(ipt, "-w", "-A", "OUTPUT", "-m", "conntrack", "--ctstate", "NEW,ESTABLISHED,RELATED", "-j", "ACCEPT")
			n.Host.Run(ipt, "-w", "-A", "INPUT", "-i", "lo", "-j", "ACCEPT")
			ours := func() error {
				rules, err := n.Host.TryRun("", ipt, "-w", "-S")
				if err != nil {
					return err
				}
				for _, want := range []string{"-A INPUT -j NEARDNS-INPUT", "-A OUTPUT -j NEARDNS-OUTPUT", "-A NEARDNS-INPUT -d 169.254.20.11/32 -p udp"} {
					if !strings.Contains(rules, want) {
						return fmt.Errorf("no %q in\n%s", want, rules)
					}
				}
				return nil
			}
			n.repairedBy("policy DROP", ours, ipt+" -w -P INPUT DROP && "+ipt+" -w -P OUTPUT DROP")
			n.wantSeen("policy DROP", "OK", "firewall", "INPUT policy DROP")
			want := 1
			if kind == "nft" { // in legacy each costs the lease again, and one that is lost often rests
				n.repairedBy("our chain flushed", ours, ipt+" -w -F NEARDNS-INPUT")
				n.repairedBy("our jump deleted", ours, ipt+" -w -D INPUT -j NEARDNS-INPUT")
				want = 3
			}
			n.repairs("firewall", want)

			// With the agent dead, the doctor sees what is missing; cleanup takes the rest away.
			n.agent.Kill()
			n.Host.Run(ipt, "-w", "-F", "NEARDNS-INPUT")
			n.wantSeen("agent dead", "FAIL", "firewall", "INPUT policy DROP")
			n.write("net.d/10-pods.conflist", "{}")
			if code, text := n.run("cleanup", "--config", n.path("node.yaml"), "--cni-conf", n.path("net.d")); code != 0 {
				t.Fatalf("cleanup exits with %d: %s", code, text)
			}
			if rules := n.Host.Run(ipt, "-w", "-S"); strings.Contains(rules, "NEARDNS") {
				t.Errorf("cleanup left\n%s", rules)
			}
		})
	}
}

// repairedBy makes a fault while a pod queries, and waits until look is content and the cache answers.
func (n *node) repairedBy(name string, look func() error, fault string) {
	n.t.Helper()
	pods := n.keepAsking()
	n.Host.Run("sh", "-c", fault)
	testutil.Eventually(n.t, look)
	n.awaitReady()
	n.awaitCached(name)
	pods.end(name)
}

// TestNoNewConntrackEntry: hits go on where no connection can be tracked any more. nf_conntrack_max is one for all network namespaces, so
// that what a full table does, dropping each packet that needs a new entry, is done by a rule, for all but the agent's own queries.
func TestNoNewConntrackEntry(t *testing.T) {
	n := newNode(t, testutil.Dual, testutil.NFTables)
	n.start()
	name := freshName()
	for _, at := range n.targets() {
		_, err := n.ask(at, name, testutil.Attempt)
		testutil.Must(t, err)
	}
	n.Host.RunInput(`table inet full {
	chain prerouting { type filter hook prerouting priority -199; ct state new meta l4proto { tcp, udp } drop; }
	chain output { type filter hook output priority -199; oifname "kubedns0" accept; ct state new meta l4proto { tcp, udp } drop; }
}
`, "nft", "-f", "-")
	for _, at := range n.targets() {
		for range 20 {
			if _, err := n.ask(at, name, testutil.Attempt); err != nil {
				t.Fatalf("a hit without conntrack: %v", err)
			}
		}
		direct := netip.AddrPortFrom(n.KubeDNSAddrs()[0], 53)
		if a, err := testutil.Ask(n.pod.NetNS, direct, name, dns.TypeA, at.network, testutil.AskOptions{Timeout: 100 * time.Millisecond}); err == nil {
			t.Errorf("%s answers a new connection (%s), so nothing was full", direct, a)
		}
	}
	if a, err := n.agentStatus(); err != nil || !a.Ready {
		t.Errorf("the leases went: %+v, %v", a, err)
	}
	n.Host.Run("nft", "delete", "table", "inet", "full")
	n.awaitCached("room again")
}
