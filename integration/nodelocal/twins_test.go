package nodelocal_test

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// Two DaemonSets on one address (KEP-1024's way to be upgraded without a gap): one serves, the other stands by and takes the node
// when it is free, whether the first was killed or instructed to end.
func TestTwoDaemonSets(t *testing.T) { twoDaemonSets(t, uncounted) }

func twoDaemonSets(t *testing.T, count counter) {
	for _, c := range []cell{{testutil.IPv4, testutil.NFTables, ""}, {testutil.IPv4, testutil.IPTables, string(iptables.Legacy)}} {
		t.Run(c.String(), func(t *testing.T) { twoAgents(t, c.node(t), count) })
	}
}

func twoAgents(t *testing.T, n *node, count counter) {
	pod := n.pod()
	first := n.serve("-skipteardown")
	second := n.agent("-skipteardown")
	n.awaitLog(second, 0, "standing by")
	phase := count(n, pod.NetNS)
	phase("one serves, one stands by", 0)
	testutil.Check(t, first.Terminate(testutil.Patience()), "SIGTERM")
	n.awaitLeases(second, n.served()...)
	phase("the first ends", 0)
	n.each(pod.NetNS, "the second serves", cached, n.served()...)
	third := n.agent("-skipteardown")
	n.awaitLog(third, 0, "standing by")
	second.Kill()
	n.awaitLeases(third, n.served()...)
	phase("the second was killed", anyLoss)
	n.each(pod.NetNS, "the third serves", cached, n.served()...)
}

// One DaemonSet has our image, the other node-cache's still: what node-cache serves stays its own, and when it is gone the
// addresses are ours.
func TestBesideNodeCache(t *testing.T) {
	for _, c := range append(onIPTables(testutil.IPv4), cell{testutil.IPv4, testutil.IPTables, ""}) {
		t.Run(c.String(), func(t *testing.T) { besideNodeCache(t, c.node(t)) })
	}
}

func besideNodeCache(t *testing.T, n *node) {
	pod := n.pod()
	stock := n.stock()
	testutil.Eventually(t, func() error { return cached(pod.NetNS, local4, "udp") })
	p := n.agent("-skipteardown")
	n.awaitLog(p, 0, unix.EADDRINUSE.Error())
	testutil.Eventually(t, func() error { return n.all(pod.NetNS, cached, n.served()...) })
	stock.Kill()
	n.awaitLeases(p, n.served()...)
	n.each(pod.NetNS, "ours", cached, n.served()...)
}

// install/uninstall, which takes neardns off every node, takes off what the agent leaves in node-cache's place, too.
func TestUninstallAfterwards(t *testing.T) {
	config := testutil.ReadFile(t, "../../install/uninstall/nodeconfig.yaml")
	for _, c := range []cell{{testutil.IPv4, testutil.NFTables, ""}, {testutil.IPv4, testutil.IPTables, string(iptables.Legacy)}} {
		t.Run(c.String(), func(t *testing.T) {
			n := c.node(t)
			p := n.serve()
			n.write("nodeconfig.yaml", strings.ReplaceAll(config, "/host/", n.dir+"/"))
			n.write("net.d/.keep", "")
			testutil.Check(t, p.Terminate(testutil.Patience()), "SIGTERM")
			n.cleanup("by install/uninstall", "--config="+n.path("nodeconfig.yaml"), "--cni-conf="+n.path("net.d"))
		})
	}
}

// The agent is killed, and never started again: the operator rolls the image back meanwhile. node-cache finds link and switch as the
// agent left them, and is served from its first moment.
func TestKilledThenRolledBack(t *testing.T) { killedThenRolledBack(t, uncounted) }

func killedThenRolledBack(t *testing.T, count counter) {
	for _, c := range append(onIPTables(testutil.IPv4), cell{testutil.IPv4, testutil.IPTables, ""}) {
		t.Run(c.String(), func(t *testing.T) {
			n := c.node(t)
			pod := n.pod()
			p := n.serve()
			phase := count(n, pod.NetNS)
			p.Kill()
			phase("ours killed", anyLoss)
			n.each(pod.NetNS, "ours killed", direct, n.served()...)
			stock := n.stock()
			n.each(pod.NetNS, "stock started", cached, n.served()...)
			phase("stock started", anyLoss)
			phase("stock serves next to our switch", 0)
			n.each(pod.NetNS, "stock serves next to our switch", cached, n.served()...)
			stock.Kill()
			if c.backend == "" {
				phase("stock killed", anyLoss)
				n.each(pod.NetNS, "stock killed", direct, n.served()...)
				return
			}
			// Its rules stand before ours in iptables, and keep its packets from the way back: it is as it was without us, until
			// a program serves there again.
			p = n.serve()
			phase("ours again", anyLoss)
			n.each(pod.NetNS, "ours again", cached, n.served()...)
			p.Kill()
			n.each(pod.NetNS, "ours killed again, the stock cache's rules still there", direct, n.served()...)
		})
	}
}
