//go:build timing

package environment

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

const (
	repairLimit  = 500 * time.Millisecond  // of what netlink events report
	restoreLimit = time.Second             // of rules that go while no agent runs (docs/reference/compatibility.md)
	patientWatch = 600 * time.Millisecond  // for which the watch leaves rules to an agent that answers
	slack        = 1500 * time.Millisecond // of a busy machine
	// gapLimit bounds how long a pod may be without an answer: its own retry, and what a lease may outlive its agent's way.
	gapLimit = 800*time.Millisecond + 2*askTimeout + slack
)

// gaps measures how long a target was without an answer.
type gaps struct {
	mu      sync.Mutex // guards the fields below
	last    map[target]time.Time
	longest time.Duration
}

func (g *gaps) answered(at target) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.longest = max(g.longest, now.Sub(g.last[at]))
	g.last[at] = now
}

// newTimedNode is newNode with nftables and the product's default leases.
func newTimedNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t, testutil.Dual, testutil.NFTables)
	n.write("node.yaml", strings.Replace(n.config(), calm, "", 1))
	n.start()
	return n
}

// timed makes a fault while a pod queries, and fails unless look finds what it did before within limit and no pod waits longer than gap.
func (n *node) timed(name, fault string, look func() string, limit, gap time.Duration) {
	n.t.Helper()
	before, g := look(), &gaps{last: map[target]time.Time{}}
	for _, at := range n.targets() {
		g.last[at] = time.Now()
	}
	pods := n.keepAskingFor(g.answered)
	n.Host.Run("sh", "-c", fault)
	begun := time.Now()
	n.awaitLike(name, before, look)
	took := time.Since(begun)
	n.answered(name)
	pods.end(name)
	for at := range g.last {
		g.answered(at) // also if no answer came any more
	}
	n.t.Logf("%s: repaired after %v, longest gap %v", name, took.Round(time.Millisecond), g.longest.Round(time.Millisecond))
	if took > limit || g.longest > gap {
		n.t.Errorf("%s: repaired after %v, want %v; no answer for %v, want %v at most", name, took, limit, g.longest, gap)
	}
}

// TestTimingRepairs measures how soon a running agent repairs its link, its rules and its way through a host's firewall.
//
// State: TestLinkFaults, TestRuleFaults, TestPolicyDrop. Bound: TestLostProbeIsNoLostLease (agent/internal/node) of the gap.
func TestTimingRepairs(t *testing.T) {
	n := newTimedNode(t)
	n.timed("link deleted", "ip link del neardns0", n.link, repairLimit+slack, gapLimit)
	n.awaitReady()
	n.timed("table deleted", "nft delete table inet neardns", n.table, repairLimit+slack, gapLimit)
	n.awaitReady()
	n.Host.Run("sh", "-c", "iptables -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT; iptables -A INPUT -i lo -j ACCEPT")
	policy := func() string { // empty, or our rules are there
		if rules := n.Host.Run("iptables", "-S"); strings.Contains(rules, "-P INPUT DROP") && !strings.Contains(rules, "-A INPUT -j NEARDNS-INPUT") {
			return rules
		}
		return ""
	}
	n.timed("policy DROP", "iptables -P INPUT DROP", policy, repairLimit+slack, gapLimit)
}

// TestTimingRulesRestored measures how soon the watch restores the switch after the agent died, and that it leaves a living agent its time.
//
// State: TestSwitchWithoutAgent. Bound: none, netlink reports the change.
func TestTimingRulesRestored(t *testing.T) {
	n := newTimedNode(t)
	n.watch()
	begun := time.Now()
	n.timed("a living agent", "nft delete table inet neardns", n.table, repairLimit+slack, gapLimit)
	if took := time.Since(begun); n.restored() > 0 && took < patientWatch {
		t.Errorf("the watch wrote next to an agent that repaired its rules within %v", took)
	}
	n.awaitReady()
	n.agent.Kill()
	n.answered("agent killed")
	n.timed("table deleted", "nft delete table inet neardns", n.table, restoreLimit+slack, restoreLimit+askTimeout+slack)
}
