package steering

import (
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// The resource limits of the DaemonSet in the NodeLocal DNSCache proposal (KEP-1024): CPU 50m, memory 25Mi.
const (
	proposalCPU    = 5 * time.Millisecond // of every 100 ms
	proposalMemory = 25 << 20
)

// newLimited starts an agent of a new installation within the proposal's limits, of its CPU only once it is ready: a start within 50m takes
// most of a minute on a busy machine.
func newLimited(t *testing.T) (n *node, memory *testutil.Cgroup) {
	t.Helper()
	needBPF(t)
	cpu, memory := testutil.NewCgroups(t)
	memory.LimitMemory(proposalMemory)
	n = newNode(t, setup{install: true, proven: true})
	n.startIn(cpu, memory)
	cpu.LimitCPU(proposalCPU)
	return n, memory
}

// wantAlive checks that the agent that was started lives, and logs the memory that it takes.
func (n *node) wantAlive(group *testutil.Cgroup) {
	n.t.Helper()
	pid := n.agent.PID()
	n.t.Logf("the agent's memory: %d KiB, of it its own %d KiB; its control group had %d KiB at most, of %d KiB",
		memory(n.t, pid, "VmRSS")>>10, memory(n.t, pid, "RssAnon")>>10, group.PeakMemory()>>10, proposalMemory>>10)
	if kills := group.OOMKills(); kills > 0 || !group.Contains(n.agent.PID()) {
		n.t.Errorf("the kernel killed %d processes at the memory limit", kills)
	}
}

// TestProposalLimits: within the proposal's limits the agent starts, steers a pod, answers it and has the kernel answer its hits, with 400
// names in its cache, and the kernel does not kill it. TestTimingProposalLimits counts lost queries.
func TestProposalLimits(t *testing.T) {
	n, group := newLimited(t)
	p := n.addPod(nil)
	n.wantServed("within the limits", p)
	n.warm(p, hits(400))
	n.wantSteered(p.client(), "with names in the cache", n.all()[0])
	n.wantAlive(group)
}
