package steering

import (
	"cmp"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/neardns/neardns/integration/compat"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestMatrix takes the agent through its life and deaths on every kind of node, and sends queries in each state by every protocol,
// address and family.
func TestMatrix(t *testing.T) {
	ran := false
	for _, s := range cells() {
		t.Run(s.String(), func(t *testing.T) {
			ran = true
			t.Parallel()
			walk(t, s)
		})
	}
	if !ran && os.Getenv(envBackends) == "" { // else a test of nothing passes
		t.Error("-run chooses none of the cells")
	}
}

// envBackends chooses among the cells, for machines that have only some, such as "nftables,iptables-legacy"; all without it.
const envBackends = "NEARDNS_BACKENDS"

// cells are the shared cases over back ends, kube-proxy's modes, families and ways to attach pods: each pair of a mode with one of the
// others, and not each triple. The tracer goes through all combinations of what rules depend on (pkg/testutil/trace). The
// compatibility table (docs/reference/compatibility.md) has each of them.
func cells() []setup {
	attachments := []testutil.Attach{testutil.PTP, testutil.BridgeCNI, testutil.BridgeNF}
	var out []setup
	for i, proxy := range testutil.Proxies() {
		for _, backend := range chosen(envBackends, nftables, string(iptables.NFT), string(iptables.Legacy)) {
			if backend != nftables && proxy == testutil.NFTables { // TestIPTablesBesideNFTables is about that one
				continue
			}
			for j, families := range []testutil.Families{testutil.Dual, testutil.IPv4, testutil.IPv6} {
				s := setup{families: families, proxy: proxy, attach: attachments[(i+j)%len(attachments)], backend: backend}
				if backend == nftables {
					s.backend = ""
				}
				out = append(out, s)
			}
		}
	}
	return out
}

const nftables = "nftables"

func chosen(env string, all ...string) []string {
	if list := os.Getenv(env); list != "" {
		return strings.Split(list, ",")
	}
	return all
}

func walk(t *testing.T, s setup) {
	t.Helper()
	s.record(t, "")
	// ptp's pods are steered at ADD, as pods are that an agent steered which is gone; the others wait for the first agent.
	s.proven, s.install = s.attach != testutil.PTP, true
	s.config = "kernelHits: {mode: \"off\"}\n" // TestDefaultInstall has them
	n := newNode(t, s)
	p := n.addPod(nil)
	before, want := n.all(), podfile.Steered
	if s.proven {
		before, want = targets(n.ClusterDNS()...), podfile.Pending
	}
	if err := p.in(want); err != nil {
		if !strings.Contains(err.Error(), context.DeadlineExceeded.Error()) { // an ADD that runs out of time leaves the pod to the agent
			t.Fatal(err)
		}
		before = targets(n.ClusterDNS()...)
	}
	c := p.client()
	n.wantFallback(c, "agent never started", before...)

	n.startAgent()
	testutil.Eventually(t, func() error { return p.in(podfile.Steered) })
	n.wantSteered(c, "agent up", n.all()...)
	if s.backend == "" {
		n.wantUntracked(p, n.all()...)
	}

	n.kill()
	n.wantFallback(c, "agent killed", n.all()...)
	n.wantNoProber("agent killed")

	n.startAgent()
	n.wantSteered(c, "agent up again", n.all()...)
	n.agent.Stop()
	n.awaitFallback(c, "agent stopped", n.all()...)
	n.agent.Cont()
	n.wantSteered(c, "agent goes on", n.all()...)

	testutil.Must(t, n.agent.Terminate(testutil.Patience()))
	n.wantFallback(c, "lease withdrawn", n.all()...)
	n.wantStays()
	n.startAgent()
	n.wantSteered(c, "agent up after an orderly stop", n.all()...)
}

// record notes that the test is about the cell of a setup in the compatibility table; limit is for what does not work.
func (s setup) record(t *testing.T, limit string) {
	t.Helper()
	backend := cmp.Or(s.backend, nftables)
	compat.Record(t, compat.Cell{Table: "nodes", Row: []string{backend, string(s.proxy), kernelRow()}, Column: s.families.String(), Limit: limit})
}

// kernelRow is the row of the table for the kernel at hand. Only those that integration/vm brings have one of their own: what
// other machines run changes from day to day.
func kernelRow() string {
	if k := compat.Kernel(); k == "5.10" || k == "6.1" || k == "6.12" {
		return k
	}
	return "later"
}

// wantNoProber waits until nothing of the prober is left: its link goes with its netns, and that with the process.
func (n *node) wantNoProber(when string) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		return testutil.ErrorIf(n.hasLink("neardns-prober"), "%s: the link neardns-prober is still there", when)
	})
}

// wantStays looks at what an orderly stop leaves: link and switch, and no lease.
func (n *node) wantStays() {
	n.t.Helper()
	if !n.hasLink("neardns0") {
		n.t.Error("the link must outlive the agent")
	}
	if s := n.status(); !s.Switch || s.NoAgent == "" {
		n.t.Errorf("the switch must outlive the agent: %+v", s)
	}
	if leases := n.leases(); len(leases) > 0 {
		n.t.Errorf("leases stand after an orderly stop: %v", leases)
	}
	n.wantNoProber("after an orderly stop")
}
