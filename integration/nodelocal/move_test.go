package nodelocal_test

import (
	"math"
	"strings"
	"testing"

	"github.com/neardns/neardns/integration/nodelocal"
	"github.com/neardns/neardns/pkg/testutil"
)

// counter begins a load from a pod and returns what ends a phase of it: a test that counts fails if more queries were lost than maxLost.
type counter func(n *node, from *testutil.NetNS) (phase func(when string, maxLost int))

// uncounted is for the tests of states, which measure nothing.
func uncounted(*node, *testutil.NetNS) func(string, int) { return func(string, int) {} }

// anyLoss is for phases in which a server is dead and its rules send queries there: that costs what it costs.
const anyLoss = math.MaxInt

// guide is the commands of docs/move-from-nodelocal.md, in their order, which the test goes through.
type guide struct {
	t     *testing.T
	steps []string
}

func readGuide(t *testing.T) *guide {
	t.Helper()
	_, section, _ := strings.Cut(testutil.ReadFile(t, "../../docs/move-from-nodelocal.md"), "\n## Move and roll back\n")
	section, _, _ = strings.Cut(section, "\n## ")
	g := &guide{t: t}
	fenced := false
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "```"):
			fenced = !fenced
		case fenced:
			g.steps = append(g.steps, line)
		}
	}
	return g
}

// next holds that a command is the section's next, and returns its words.
func (g *guide) next(begins string) []string {
	g.t.Helper()
	if len(g.steps) == 0 || !strings.HasPrefix(g.steps[0], begins) {
		g.t.Fatalf("the page's next step is not %q but %q", begins, g.steps)
	}
	words := strings.Fields(g.steps[0])
	g.steps = g.steps[1:]
	return words
}

// The move as in docs/move-from-nodelocal.md: NodeLocal DNSCache, then our image in its manifest, then back. TestTimingMoves counts
// the queries that are lost.
func TestMoveAndBack(t *testing.T) { moveAndBack(t, uncounted) }

func moveAndBack(t *testing.T, count counter) {
	for _, c := range append([]cell{{testutil.IPv4, testutil.IPTables, ""}, {testutil.IPv4, testutil.NFTables, ""}}, onIPTables(testutil.IPv4)...) {
		t.Run(c.String(), func(t *testing.T) {
			n := c.node(t)
			pod, guide := n.pod(), readGuide(t)
			guide.next("kubectl -n kube-system get ")
			stock := n.stock()
			n.each(pod.NetNS, "stock", cached, n.served()...)
			phase := count(n, pod.NetNS)
			phase("stock serves", 0)

			guide.next("kubectl -n kube-system set image daemonset/node-local-dns node-cache=neardns/neardns-agent:")
			guide.next("kubectl -n kube-system rollout status ")
			// The kubelet ends the old pod. node-cache takes its rules and link away, unless it is killed.
			stock.Kill()
			phase("stock killed, its rules and link left behind", anyLoss)
			p := n.serve()
			phase("ours starts", anyLoss)
			_, command, _ := strings.Cut(strings.Join(guide.next("kubectl -n kube-system exec daemonset/node-local-dns -- "), " "), " -- /bin/")
			testutil.Eventually(t, func() error {
				out, err := n.exec(p, strings.Fields(command)...)
				return testutil.ErrorIf(err != nil || !strings.Contains(out, local4.String()), "%s: %w\n%s", command, err, out)
			})
			n.each(pod.NetNS, "ours", cached, n.served()...)
			phase("ours serves", 0)
			p.Kill()
			phase("ours killed", anyLoss)
			n.each(pod.NetNS, "ours killed", direct, n.served()...)
			p = n.serve()
			phase("ours again", 0)

			guide.next("kubectl -n kube-system rollout undo daemonset/node-local-dns")
			// Ours is told to end, node-cache starts.
			testutil.Check(t, p.Terminate(testutil.Patience()), "SIGTERM")
			phase("ours ended", 0)
			n.each(pod.NetNS, "ours ended", direct, n.served()...)
			if n.hasLink(nodelocal.Link) {
				t.Error("the link is still there, without -skipteardown")
			}
			stock = n.stock()
			n.each(pod.NetNS, "stock begins", cached, n.served()...)
			phase("stock again", anyLoss)
			n.each(pod.NetNS, "stock again", cached, n.served()...)
			// And what it did not have before: our switch stays, and hands what it does not answer to kube-dns.
			stock.Kill()
			phase("stock killed, our switch left behind", anyLoss)
			n.each(pod.NetNS, "stock killed", direct, n.served()...)

			// Without the switch it is as it was.
			n.stock()
			testutil.Eventually(t, func() error { return cached(pod.NetNS, local4, "udp") })
			n.cleanup("next to stock", guide.next("neardns-agent cleanup")[2:]...)
			n.each(pod.NetNS, "after cleanup, stock", cached, n.served()...)
			if len(guide.steps) > 0 {
				t.Errorf("the page has steps that nobody took: %q", guide.steps)
			}
		})
	}
}
