package steering

import (
	"fmt"
	"strings"
	"testing"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestRearranged rolls agents over one another whose configurations arrange the node differently, without a cleanup between them: steered,
// transparent, steered, transparent. No query is lost, of a pod with a table of ours and of one without.
func TestRearranged(t *testing.T) {
	n := newNode(t, setup{families: testutil.Dual, config: kernelOn(t)})
	steered, plain := n.addPod(nil), n.addOldPod()
	n.startAgent()
	n.wantSteered(steered.client(), "at first", targets(n.ClusterDNS()...)...)
	flows := map[string]*traffic{"with a table": n.startTraffic(steered, freshName(), 130), "without": n.startTraffic(plain, freshName(), 130)}
	for i, transparent := range []bool{true, false, true} {
		for _, f := range flows {
			f.more(100)
		}
		n.setup.transparent = transparent
		n.configure(n.setup.config)
		name := fmt.Sprintf("transparent-%t-%d", transparent, i)
		n.succeed(name)
		n.wantInKernel(map[bool]int{true: 2, false: 1}[transparent], 0)
		n.wantNoFaults()
		if !transparent {
			n.awaitReady()
			n.wantSteered(steered.client(), name, targets(n.ClusterDNS()...)...)
			continue
		}
		for _, a := range n.ClusterDNS() {
			at := target{a, "udp"}
			n.heat(plain, at, freshName())
			// Its packets are for the steering address, which no server serves: the switch gives them to kube-dns.
			n.wantFallback(steered.client(), name, targets(a)...)
		}
	}
	for _, f := range flows {
		f.more(100)
		f.allAnswered()
	}
	testutil.Check(t, n.agent.Terminate(testutil.Patience()))
	// What the steered ones laid goes with the cleanup, by the configuration of now.
	n.prints(cli.Good, n.cleanup())
	n.wantNothingLaid(steered)
	n.awaitKubeDNS(steered)
}

// TestFlushedAfterRearranged: an agent with arrangement transparent keeps no switch. Where another program takes away the one that steered
// pods had before, a pod's own table gives it back: kube-dns answers it, and the kernel. With the watch the switch stands again.
func TestFlushedAfterRearranged(t *testing.T) {
	n, steered := newServed(t, setup{families: testutil.Dual, config: kernelOn(t)})
	ats := targets(n.ClusterDNS()...)
	n.wantSteered(steered.client(), "at first", ats...)
	n.setup.transparent = true
	n.configure(n.setup.config)
	n.succeed("transparent")
	n.wantInKernel(1, 0)
	n.wantFallback(steered.client(), "transparent", ats...)

	n.Host.Run("nft", "delete", "table", "inet", "neardns")
	n.awaitFallback(steered.client(), "flushed", ats...)
	n.heat(steered, target{n.ClusterDNS()[0], "udp"}, freshName())

	n.startWatch()
	for i := range int64(2) {
		testutil.Eventually(t, func() error {
			w, _, err := nodestate.WatchFile(n.stateDir()).Read()
			return testutil.ErrorIf(err != nil || w.Restored != i+1, "the watch put the switch back %d times, want %d (%w)", w.Restored, i+1, err)
		})
		n.awaitFallback(steered.client(), "by the switch again", ats...)
		if rules := n.Host.Run("nft", "list", "table", "inet", "neardns"); !strings.Contains(rules, "fallback4") {
			t.Errorf("the switch is not whole:\n%s", rules)
		}
		if i == 0 {
			n.Host.Run("nft", "delete", "table", "inet", "neardns")
		}
	}
}
