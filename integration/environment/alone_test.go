package environment

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

// watch runs `neardns-install watch` on the node, as the DaemonSet does.
func (n *node) watch() *testutil.Process {
	n.t.Helper()
	testutil.Must(n.t, os.MkdirAll(n.path("cni-bin"), 0o755))
	begun := time.Now()
	p := n.Host.Start(made.Path("neardns-install"), "watch", "--nodeconfig", n.path("node.yaml"), "--cni-bin", n.path("cni-bin"),
		"--cni-conf", n.path("net.d"), "--state-dir", n.state, "--plugin", made.Path("neardns"), "--agent", made.Path("neardns-agent"))
	n.t.Cleanup(func() {
		if n.t.Failed() {
			n.t.Logf("watch's log:\n%s", p.Output())
		}
	})
	n.awaitLook(begun)
	return p
}

// awaitLook waits until the watch has looked after a time: what another one noted before may still be there.
func (n *node) awaitLook(after time.Time) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		w, ok, err := nodestate.WatchFile(n.state).Read()
		return testutil.ErrorIf(err != nil || !ok || !w.Looked.After(after), "the watch has not looked yet: %+v, %w", w, err)
	})
}

func (n *node) restored() int64 {
	n.t.Helper()
	w, _, err := nodestate.WatchFile(n.state).Read()
	testutil.Must(n.t, err)
	return w.Restored
}

func (n *node) awaitRestored(what string, want int64) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		got := n.restored()
		return testutil.ErrorIf(got != want, "%s: the watch has put the rules back %d times, want %d", what, got, want)
	})
}

// answered fails unless every target is answered, and by kube-dns itself.
func (n *node) answered(what string) {
	n.t.Helper()
	for _, at := range n.targets() {
		testutil.Eventually(n.t, func() error {
			if _, err := n.ask(at, freshName(), askTimeout); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			return nil
		})
	}
}

// secretChains are the agent's alone to fill: without them there is no lease.
var secretChains = regexp.MustCompile(`(?s)chain secret[46] \{.*?\}`)

func (n *node) table() string {
	out, _ := n.Host.TryRun("", "nft", "-s", "-t", "list", "table", "inet", "neardns")
	return secretChains.ReplaceAllString(out, "")
}

// TestSwitchWithoutAgent takes the host's rules away while no agent runs, or none that repairs anything: the watch restores them,
// never over another version's, and never after a cleanup. Without a watch the next ADD does. TestTimingRulesRestored has the time.
func TestSwitchWithoutAgent(t *testing.T) {
	n := newNode(t, testutil.Dual, testutil.NFTables)
	n.start()
	watch := n.watch()
	nft := func(text string) { n.t.Helper(); n.Host.Run("sh", "-c", text) }
	const drop = "nft delete table inet neardns"
	whole := n.table()

	// A living agent restores its rules by itself. One that the machine lets wait for longer than the watch does is helped by it.
	before := n.repairs("rules", 0)
	nft(drop)
	testutil.Eventually(t, func() error {
		a, err := n.agentStatus()
		return testutil.ErrorIf(err != nil || a.Repairs["rules"] == before, "the agent has not repaired its rules: %+v, %w", a, err)
	})
	n.awaitReady()
	n.awaitCached("a living agent")
	n.awaitLook(time.Now()) // the watch may have been at it, too
	want := n.restored()
	testutil.Equal(t, "what a living agent repaired", whole, n.table())

	n.agent.Kill()
	n.answered("agent killed")
	for _, f := range []struct{ name, command string }{
		{"table deleted", drop},
		{"table flushed", "nft flush table inet neardns"},
		{"addresses flushed", "nft 'flush map inet neardns cluster4; flush map inet neardns cluster6'"},
		// What nftables.service does at a reload: one transaction that flushes all and loads a file, in which kube-proxy's rules are.
		{"ruleset reloaded", "{ echo flush ruleset; nft list ruleset | awk '/^table inet neardns /{skip=1} !skip{print} /^}/{skip=0}'; } > " + n.path("rules.nft") + " && nft -f " + n.path("rules.nft")},
	} {
		pods := n.keepAsking()
		nft(f.command)
		want++
		n.awaitRestored(f.name, want)
		n.answered(f.name)
		pods.end(f.name)
		testutil.Equal(t, f.name+": what was put back", whole, n.table())
	}

	// The link is not needed for the fallback: the address is rewritten before the kernel looks for a route to it.
	n.Host.Run("ip", "link", "del", "neardns0")
	n.answered("link gone")

	// Another version's rules are left, also where a rule next to them is restored.
	nft("nft add chain inet neardns newer && nft insert rule inet neardns switch4 counter && nft flush chain inet neardns fallback6")
	want++
	n.awaitRestored("another version", want)
	n.answered("another version")
	if got := n.Host.Run("nft", "list", "table", "inet", "neardns"); !strings.Contains(got, "chain newer") || !strings.Contains(strings.SplitN(got, "chain switch4 {", 2)[1][:60], "counter") {
		t.Errorf("another version's rules were changed:\n%s", got)
	}

	// An agent that hangs restores nothing, although it has its lock and its socket.
	n.start()
	n.agent.Stop()
	nft(drop)
	want++
	n.awaitRestored("agent hung", want)
	n.answered("agent hung")
	n.agent.Cont()
	n.awaitReady()
	n.agent.Kill()

	// No watch, no agent, no table: that is the one case which ends steered pods' DNS, until the next pod is made.
	watch.Kill()
	nft(drop)
	for _, at := range n.targets() {
		if a, err := n.ask(at, freshName(), askTimeout); err == nil {
			t.Errorf("%s: answered without any rules: %s: docs/reference/compatibility.md says that it is not", at, a)
		}
	}
	next := n.AddPod("next")
	testutil.Must(t, n.add(next))
	n.answered("the next ADD")
	testutil.Equal(t, "what an ADD put back", whole, n.table())

	// A cleanup stays one, next to a watch that was forgotten.
	n.watch()
	if code, out := n.run("cleanup", "--config", n.path("node.yaml"), "--cni-conf", filepath.Join(n.dir, "none")); code != 0 {
		t.Fatalf("cleanup: %d\n%s", code, out)
	}
	n.awaitLook(time.Now())
	n.answered("cleaned up")
	testutil.Eventually(t, func() error { // one that was at it takes it away again
		got := n.table()
		return testutil.ErrorIf(got != "", "a table is left after the cleanup:\n%s", got)
	})
}

// TestSwitchWithoutAgentIptables is the same for rules in iptables, with the programs that the watch's image has.
func TestSwitchWithoutAgentIptables(t *testing.T) {
	for _, flavour := range []string{"iptables-nft", "iptables-legacy"} {
		t.Run(flavour, func(t *testing.T) {
			n := newNodeBy(t, testutil.IPv4, testutil.IPTables, flavour)
			n.start()
			watch := n.watch()
			n.agent.Kill()
			n.answered("agent killed")
			// What gives back stands in nat, among kube-proxy's.
			rules := func() string {
				return n.Host.Run("sh", "-c", flavour+"-save -t raw | grep ^-A; "+flavour+"-save -t nat | grep '^-A NODE-LOCAL-DNS'; true")
			}
			whole := rules()
			flush := []string{"sh", "-c", flavour + " -w -t nat -F NODE-LOCAL-DNS && " + flavour + " -w -t raw -F"}
			n.Host.Run(flush...)
			testutil.Eventually(t, func() error { // two transactions, which it may see one by one
				if got, now := n.restored(), rules(); got == 0 || now != whole { // what it began would go on beyond its end
					return fmt.Errorf("the watch has put rules back %d times:\n%s\nwant\n%s", got, now, whole)
				}
				return nil
			})
			n.answered("raw flushed")

			watch.Kill()
			n.Host.Run(flush...)
			if a, err := n.ask(n.targets()[0], freshName(), askTimeout); err == nil {
				t.Errorf("answered without any rules: %s", a)
			}
			testutil.Must(t, n.add(n.AddPod("next")))
			n.answered("the next ADD")
		})
	}
}
