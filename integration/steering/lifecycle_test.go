package steering

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestPodsBeforeTheAgent: without an agent a new pod stays on kube-dns, on a new node, after a reboot, and after the agent's end. It is
// steered once an agent has verified the fallback and tried the pod's path.
func TestPodsBeforeTheAgent(t *testing.T) {
	t.Parallel()
	n := newNode(t, setup{families: testutil.Dual, attach: testutil.BridgeCNI, proven: true, install: true})
	p := n.addPod(nil)
	testutil.Must(t, p.in(podfile.Pending))
	p.wantNoRules("pending")
	cluster := targets(n.ClusterDNS()...)
	n.wantFallback(p.client(), "pending", cluster...)

	n.startAgent()
	testutil.Eventually(t, func() error { return p.in(podfile.Steered) })
	n.wantSteered(p.client(), "proven", n.all()...)
	testutil.Check(t, p.check(), "CHECK of a pod that the agent steered")

	n.kill()
	later := n.addPod(nil)
	testutil.Must(t, later.in(podfile.Pending))
	n.wantFallback(later.client(), "agent killed", cluster...)
	n.wantFallback(p.client(), "agent killed", n.all()...)
	testutil.Check(t, later.check(), "CHECK of a pod that waits for its trial")
	n.startAgent()
	testutil.Eventually(t, func() error { return later.in(podfile.Steered) })
	later.del()
}

// TestFlushedRules: another program empties a pod's rules. The pod is answered all the same, CHECK names what is gone, and the next agent
// puts the rules back. TestRuleFaults (integration/environment) empties the host's.
func TestFlushedRules(t *testing.T) {
	for _, s := range []setup{
		{families: testutil.Dual, proxy: testutil.IPTables, attach: testutil.PTP, install: true},
		{families: testutil.Dual, proxy: testutil.NFTables, attach: testutil.BridgeNF, install: true},
	} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			n, p := newServed(t, s)
			n.wantSteered(p.client(), "up", n.all()...)
			if uplinks := n.Host.Run("nft", "list", "set", "inet", "neardns", "uplinks"); !strings.Contains(uplinks, `"eth0"`) {
				t.Errorf("other machines on the node's network would be served:\n%s", uplinks)
			}
			testutil.Check(t, p.check(), "CHECK of a good pod")
			p.Run("nft", "flush", "ruleset")
			_, err := p.client().ask(targets(n.ClusterDNS()...)[0], freshName(), testutil.Attempt)
			testutil.Check(t, err, "a query without the pod's rules, next to an agent")
			n.kill() // it looks at pods' tables now and then, and when it starts
			p.Run("nft", "flush", "ruleset")
			testutil.WantError(t, p.check(), "pod table", "CHECK after a flush in the pod")
			n.startAgent()
			n.wantSteered(p.client(), "mended", n.all()...)
			testutil.Check(t, p.check(), "CHECK after the repair")
		})
	}
}

// static is the host's state without what kernels and agents change by the second.
func (n *node) static() string {
	n.t.Helper()
	rules := n.Host.Run("nft", "-s", "-t", "list", "ruleset")
	for _, set := range []string{"exempt4", "exempt6"} {
		out, _ := n.Host.TryRun("", "nft", "list", "set", "inet", "neardns", set)
		rules += out
	}
	return rules + n.Host.Run("sh", "-c", "ip -o link | cut -d: -f2; ip -o address | awk '{print $2, $3, $4}'; ip route; ip -6 route; ip rule; ip -6 rule")
}

// TestCleanupLeavesNothing takes everything away under living pods, which go on by kube-dns.
func TestCleanupLeavesNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t, setup{families: testutil.Dual, proxy: testutil.IPTables, attach: testutil.BridgeNF})
	n.addOldPod() // makes cni0
	before, files := n.static(), n.files()
	n.startAgent()
	first, second := n.addPod(nil), n.addPod(nil)
	n.wantSteered(first.client(), "up", n.all()...)
	cluster := targets(n.ClusterDNS()...)

	if names := n.read(conflistFile); !strings.Contains(names, "neardns") {
		t.Fatalf("the network has no entry to take out:\n%s", names)
	}
	n.prints(cli.Degraded, n.cleanup(), fmt.Sprint(n.agent.PID()))
	n.wantSteered(first.client(), "cleanup refused", n.all()...)
	testutil.Must(t, n.agent.Terminate(testutil.Patience()))

	// A pod whose netns cannot be seen from here may still send to the switch, which must stay for it.
	lost := podfile.Path(n.stateDir(), second.container(), "eth0")
	original := testutil.ReadFile(t, lost)
	n.rewrite(lost, func(f object) { f["netns"] = "/run/not-mounted-here/netns/x" })
	n.prints(cli.Failed, n.cleanup(), "default/"+second.name) // the pod that cannot be entered
	n.wantFallback(second.client(), "cleanup could not enter it", n.all()...)
	n.wantFallback(first.client(), "cleanup stopped", cluster...)

	testutil.WriteFile(t, lost, original)
	n.prints(cli.Good, n.cleanup())
	if names := n.read(conflistFile); strings.Contains(names, "neardns") || !strings.Contains(names, "bridge") {
		t.Errorf("the network after cleanup:\n%s", names)
	}
	for _, p := range []*pod{first, second} {
		p.wantNoRules("cleaned up")
		n.wantFallback(p.client(), "cleaned up", cluster...)
		p.del()
	}
	testutil.Equal(t, "left on the node", before, n.static())
	testutil.Equal(t, "files left", files, n.files())
	n.prints(cli.Good, n.cleanup()) // once more
}

// cleanup is the command that takes neardns off the node.
func (n *node) cleanup() string { return "cleanup --cni-conf " + n.path("net.d") }

// doctor is the command that inspects a node without a network of pods.
func (n *node) doctor() string { return "doctor --cni-conf " + n.path("none") }

// rewrite changes a JSON file.
func (n *node) rewrite(path string, change func(object)) {
	n.t.Helper()
	var content object
	testutil.Must(n.t, json.Unmarshal([]byte(testutil.ReadFile(n.t, path)), &content))
	change(content)
	data, err := json.Marshal(content)
	testutil.Must(n.t, err)
	testutil.WriteFile(n.t, path, string(data))
}

// files lists what is in the products' two folders.
func (n *node) files() []string {
	n.t.Helper()
	out := []string{}
	for _, dir := range []string{n.stateDir(), n.persistDir()} {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && path != dir {
				out = append(out, path)
			}
			return nil // a folder that was never made holds nothing
		})
	}
	return out
}
