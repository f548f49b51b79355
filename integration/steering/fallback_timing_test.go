//go:build timing

package steering

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestTimingFallback measures how soon kube-dns answers everything if the agent is killed or hangs.
//
// State: TestMatrix (here). Bound: TestAnyLifetimeIsStable (pkg/steer/nft) and TestLifetime (pkg/steer/rules): the kernel ends a lease.
func TestTimingFallback(t *testing.T) {
	for backend, life := range map[string]time.Duration{"": lifetime, string(iptables.NFT): iptablesLifetime} {
		s := setup{families: testutil.Dual, proxy: testutil.IPTables, backend: backend}
		t.Run(s.String(), func(t *testing.T) {
			n := newNode(t, s)
			c := n.addPod(nil).client()
			n.startAgent()
			n.wantSteered(c, "agent up", n.all()...)
			n.agent.Kill()
			n.wantFallbackWithin(c, "agent killed", retry, n.all()...)
			n.startAgent()
			n.wantSteered(c, "agent up again", n.all()...)
			n.agent.Stop()
			n.wantFallbackWithin(c, "agent stopped", life+retry+slack, n.all()...)
			n.agent.Cont()
		})
	}
}

// TestTimingInterceptedFallback measures the same for the processes of a host whose own queries are intercepted.
//
// State: TestInterceptNode (here). Bound: as of TestTimingFallback.
func TestTimingInterceptedFallback(t *testing.T) {
	n := intercepting(t, setup{families: testutil.Dual})
	host, cluster := client{ns: n.Host}, targets(n.ClusterDNS()...)
	n.startAgent()
	n.wantSteered(host, "agent up", cluster...)
	n.agent.Kill()
	n.wantFallbackWithin(host, "agent killed", lifetime+retry+slack, cluster...)
	n.startAgent()
	n.wantSteered(host, "agent up again", cluster...)
	n.agent.Stop()
	n.wantFallbackWithin(host, "agent stopped", lifetime+retry+slack, cluster...)
	n.agent.Cont()
}

// TestTimingDeafListener measures how soon a socket that nothing reads any more costs its address and protocol the lease.
//
// State: TestDeafListener (here). Bound: TestHangThatEndsIsForgiven (agent/internal/node).
func TestTimingDeafListener(t *testing.T) {
	n := newNode(t, setup{})
	n.startAgent()
	deaf := target{steering4, "udp"}
	begun := time.Now()
	undo := n.deafen("udp", 4)
	defer undo()
	testutil.Eventually(t, func() error {
		if n.holds(deaf) {
			return fmt.Errorf("%s still holds its lease", deaf)
		}
		return nil
	})
	if took := time.Since(begun); took > lifetime+slack {
		t.Errorf("%s lost its lease after %v, want %v at most", deaf, took, lifetime)
	}
}

// TestTimingRepair measures how soon the agent puts its rules and its link back, and how long pods wait meanwhile.
//
// State: TestFlushedRules, TestLinkIsRepaired (here). Bound: the kernel notifies the agent, no period of ours is in it.
func TestTimingRepair(t *testing.T) {
	n := newNode(t, setup{families: testutil.Dual, proxy: testutil.IPTables})
	c := n.addPod(nil).client()
	n.startAgent()
	n.wantSteered(c, "agent up", n.all()...)
	table := func() string {
		text, _ := n.Host.TryRun("", "nft", "-s", "-t", "list", "table", "inet", "neardns")
		return text
	}
	for name, tc := range map[string]struct {
		damage []string
		bound  time.Duration
	}{
		"rules flushed": {strings.Fields("nft delete table inet neardns"), 2 * time.Second},
		"address gone":  {[]string{"ip", "address", "del", steering4.String() + "/32", "dev", "neardns0"}, lifetime + retry + slack},
		"link down":     {strings.Fields("ip link set neardns0 down"), lifetime + retry + slack},
		"link gone":     {strings.Fields("ip link del neardns0"), lifetime + retry + slack},
		"prober gone":   {strings.Fields("ip link del neardns-prober"), lifetime + retry + slack},
	} {
		before := table()
		n.Host.Run(tc.damage...)
		begun := time.Now()
		for _, at := range n.all() {
			testutil.Eventually(t, func() error {
				_, err := c.ask(at, freshName(), retry)
				return err
			})
		}
		testutil.Eventually(t, func() error {
			if table() != before {
				return errors.New("the table is not as before")
			}
			return nil
		})
		if took := time.Since(begun); took > tc.bound {
			t.Errorf("%s: repaired and answered after %v, want %v", name, took, tc.bound)
		}
		n.awaitReady()
		n.wantSteered(c, name, n.all()...)
	}
}

// TestTimingIPTablesRepair measures how soon the agent puts iptables' tables back: it is notified, and does not wait for its next regular
// look, which comes after 10 s.
//
// State: TestIPTablesRepair (here). Bound: TestRepairedRulesAreProvenAtOnce, TestRepairsAreBounded (agent/internal/node).
func TestTimingIPTablesRepair(t *testing.T) {
	for _, variant := range iptables.Variants() {
		t.Run(string(variant), func(t *testing.T) {
			n := newNode(t, setup{families: testutil.IPv4, proxy: testutil.IPTables, backend: string(variant)})
			n.addPod(nil)
			n.startAgent()
			program := "iptables" + strings.TrimPrefix(string(variant), "iptables")
			for _, damage := range [][]string{
				{program, "-w", "-t", "raw", "-F"}, {program, "-w", "-t", "filter", "-F"}, strings.Fields("ip route flush table 5353"),
			} {
				before := n.ours(program)
				n.Host.Run(damage...)
				begun := time.Now()
				testutil.Eventually(t, func() error {
					if n.ours(program) != before {
						return fmt.Errorf("%v is not repaired", damage)
					}
					return nil
				})
				if took := time.Since(begun); took > 5*time.Second {
					t.Errorf("%v is repaired after %v", damage, took)
				}
			}
		})
	}
}

// wantFallbackWithin queries every target, all at the same time and again and again, until each is answered by kube-dns.
func (n *node) wantFallbackWithin(c client, when string, bound time.Duration, ats ...target) {
	n.t.Helper()
	begun := time.Now()
	took := make([]time.Duration, len(ats))
	failed := make([]error, len(ats))
	var wg sync.WaitGroup
	for i, at := range ats {
		wg.Go(func() {
			for {
				failed[i] = c.fellBack(at, retry)
				took[i] = time.Since(begun)
				if failed[i] == nil || took[i] > bound+patience {
					return
				}
			}
		})
	}
	wg.Wait()
	for i, at := range ats {
		if failed[i] != nil || took[i] > bound {
			n.t.Errorf("%s: %s fell back after %v, want %v at most (%v)", when, at, took[i].Round(time.Millisecond), bound, failed[i])
		}
		n.t.Logf("%s: %s fell back after %v", when, at, took[i].Round(time.Millisecond))
	}
}
