package callers

import (
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// cnitool runs the reference tool in the host's netns. It knows one place for libcni's cache, so it gets a /var/lib of its own.
type cnitool struct{ node *node }

// id is what the tool makes of a netns's path.
func (cnitool) id(_, netns string) string {
	sum := sha512.Sum512([]byte(netns))
	return fmt.Sprintf("cnitool-%x", sum[:10])
}

func (c cnitool) setUp(p *pod, annotations map[string]string) error {
	return c.call("add", p, annotations)
}

func (c cnitool) tearDown(p *pod) error { return c.call("del", p, nil) }

func (c cnitool) call(verb string, p *pod, annotations map[string]string) error {
	n := c.node
	caps, err := json.Marshal(object{
		"dns":                               object{"Servers": n.ClusterDNS(), "Searches": []string{"shop.svc.cluster.local"}, "Options": []string{"ndots:5"}}, // as containerd spells them
		"io.kubernetes.cri.pod-annotations": annotations,
	})
	if err != nil {
		return err
	}
	out, err := n.Host.TryRun("", "unshare", "--mount", "--propagation", "private", "sh", "-c", `mount --bind "$0" /var/lib && exec "$@"`, filepath.Dir(n.cache()),
		"env", "NETCONFPATH="+n.cniConf(), "CNI_PATH="+n.cniBin(), "CNI_IFNAME=eth0", "CAP_ARGS="+string(caps),
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME="+p.name,
		made.Path("cnitool"), verb, n.network, p.Path())
	if err != nil {
		return fmt.Errorf("cnitool %s: %w\n%s", verb, err, out)
	}
	return nil
}

func (c cnitool) must(verb string, p *pod) {
	c.node.t.Helper()
	testutil.Must(c.node.t, c.call(verb, p, nil))
}

// TestCnitool drives the chain behind the reference plugin bridge by the reference tool. TestCRIO and TestCnitoolPage have it behind ptp.
func TestCnitool(t *testing.T) {
	t.Parallel()
	n := newNode(t, "bridge", "cnitool, bridge", release(t, "hack/tools/go.mod", "plugins"))
	c := cnitool{n}
	n.caller = c
	n.step(t, "pods steered, answered by the cache", n.testPods)
	n.step(t, "agent killed: kube-dns answers, then the cache again", n.testKilled)
	n.step(t, "pods come and go under load", n.testLoad)
	n.step(t, "many pods at once", n.testMany)
	n.step(t, "opt-out by annotation", c.testOptOut)
	n.step(t, "CHECK right after ADD", c.testCheck)
	n.limit(t, "DEL after the list has vanished", "the tool goes by the list alone", c.testVanished)
	n.step(t, "GC", c.testGC)
	n.step(t, "STATUS", c.testStatus)
	n.step(t, "list rewritten, watch puts the entry back", n.testRewritten)
	n.step(t, "entry in a drop-in folder", c.testDropIn)
	n.step(t, "node rebooted", n.testReboot)
	n.step(t, "uninstalled under running pods", n.testUninstalled)
}

// release is a module's that a go.mod of this repository pins.
func release(t *testing.T, file, module string) string {
	t.Helper()
	for line := range strings.Lines(testutil.ReadFile(t, filepath.Join("../..", file))) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "github.com/containernetworking/"+module {
			return strings.TrimPrefix(f[1], "v")
		}
	}
	t.Fatalf("%s does not name containernetworking/%s", file, module)
	return ""
}

// The dns capability comes as well, in containerd's spelling.
func (c cnitool) testOptOut(t *testing.T) {
	n := c.node
	p := n.mustSetUp("in")
	f, err := p.file()
	testutil.Must(t, err)
	if len(f.Nameservers) != 2 || len(f.Searches) != 1 || len(f.Options) != 1 {
		t.Errorf("the dns capability gave %q, %q, %q", f.Nameservers, f.Searches, f.Options)
	}
	n.mustTearDown(p)
	n.testOptOut(t)
}

func (c cnitool) testCheck(t *testing.T) {
	n := c.node
	p := n.mustSetUp("checked")
	c.must("check", p)
	p.wantState(podfile.Steered, "")
	c.must("check", p)
	n.killAgent() // it might put the table back
	p.Run("nft", "delete", "table", "inet", "neardns")
	if err := c.call("check", p, nil); err == nil {
		t.Error("CHECK without the pod's table is good")
	}
	n.startAgent()
	n.mustTearDown(p)
	n.wantFiles()
}

func (c cnitool) testVanished(t *testing.T) {
	n := c.node
	p := n.mustSetUp("left")
	text := testutil.ReadFile(t, n.list())
	testutil.Must(t, os.Remove(n.list()))
	if err := c.tearDown(p); err == nil {
		t.Error("the tool took the pod down: say so in the table")
	}
	n.write("net.d/10-main.conflist", text)
	n.mustTearDown(p)
	n.wantFiles()
}

// The tool's GC names no valid attachments: it takes down all pods that the cache holds, by DEL, and ours must not take its call
// for one that reports that none is valid.
func (c cnitool) testGC(t *testing.T) {
	n := c.node
	p, q := n.mustSetUp("kept"), n.mustSetUp("forgotten")
	testutil.Must(t, os.RemoveAll(n.cache()))
	c.must("gc", p)
	n.wantFiles(p.id, q.id)
	p.wantCached("g.cluster.local.")
	n.mustTearDown(p, q)
	n.wantFiles()
	c.must("gc", n.mustSetUp("cached"))
	n.wantFiles()
}

func (c cnitool) testStatus(*testing.T) {
	n := c.node
	p := n.newPod("none")
	c.must("status", p)
	n.killAgent()
	c.must("status", p)
	n.startAgent()
}

// The tool reads the folder at each call, so all verbs come.
func (c cnitool) testDropIn(t *testing.T) {
	n := c.node
	folder := n.dropIn()
	p := n.mustSetUp("dropped-in")
	p.wantState(podfile.Steered, "")
	p.wantCached("j.cluster.local.")
	n.mustTearDown(p)
	n.wantFiles()
	testutil.Must(t, os.RemoveAll(folder))
	n.installer("install")
}

const macvlanLimit = "macvlan: the pod's packets leave by the uplink and never pass this host's netfilter; the pod is left alone, with this reason in its file, and asks kube-dns as without us"

// TestCnitoolMacvlan shows that such a pod is left alone, and works.
func TestCnitoolMacvlan(t *testing.T) {
	t.Parallel()
	n := newNode(t, "macvlan", "cnitool, macvlan", release(t, "hack/tools/go.mod", "plugins"))
	_, err := n.Host.TryRun("", "ip", "link", "add", "link", "eth0", "name", "mac0", "type", "macvlan", "mode", "bridge")
	if err != nil && (strings.Contains(err.Error(), "Unknown device type") || strings.Contains(err.Error(), "not supported")) {
		testutil.Skip(t, "this kernel has no link like macvlan") // tests of pkg/steer show what is made of other such links
	}
	testutil.Must(t, err)
	n.Host.Run("ip", "link", "delete", "mac0")
	c := cnitool{n}
	n.caller = c
	n.installer("install")
	n.startAgent()
	n.limit(t, "pods steered, answered by the cache", macvlanLimit, func(t *testing.T) {
		p := n.mustSetUp("aside")
		p.wantState(podfile.LeftAlone, "a macvlan link, not by a veth into this host")
		if out, err := p.TryRun("", "nft", "list", "table", "inet", "neardns"); err == nil {
			t.Errorf("the pod has a table of ours:\n%s", out)
		}
		p.wantKubeDNS("a.cluster.local.")
		n.mustTearDown(p)
		n.wantFiles()
	})
	n.step(t, "CHECK right after ADD", func(*testing.T) {
		p := n.mustSetUp("checked")
		c.must("check", p)
		n.mustTearDown(p)
	})
	n.step(t, "GC", func(*testing.T) {
		c.must("gc", n.mustSetUp("cached"))
		n.wantFiles()
	})
	n.step(t, "STATUS", func(*testing.T) { c.must("status", n.newPod("none")) })
	n.step(t, "uninstalled under running pods", n.testUninstalled)
}
