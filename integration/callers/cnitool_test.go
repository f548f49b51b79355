package callers

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/podfile"
)

// cnitool runs the reference tool in the host's netns. It knows one place for libcni's cache, so it gets a /var/lib of its own.
func (n *node) cnitool(verb string, p *pod, annotations map[string]string) (string, error) {
	caps, err := json.Marshal(object{
		"dns":                               object{"Servers": n.ClusterDNS(), "Searches": []string{"shop.svc.cluster.local"}, "Options": []string{"ndots:5"}}, // as containerd spells them
		"io.kubernetes.cri.pod-annotations": annotations,
	})
	if err != nil {
		return "", err
	}
	args := []string{"--mount", "--propagation", "private", "sh", "-c", `mount --bind "$0" /var/lib && exec "$@"`, n.path("lib"),
		"env", "NETCONFPATH=" + n.cniConf(), "CNI_PATH=" + n.cniBin(), "CNI_IFNAME=eth0", "CAP_ARGS=" + string(caps),
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=" + p.name,
		program("cnitool"), verb, n.network, p.Path()}
	return n.Host.TryRun("", append([]string{"unshare"}, args...)...)
}

func (n *node) must(verb string, p *pod) string {
	n.t.Helper()
	out, err := n.cnitool(verb, p, nil)
	if err != nil {
		n.t.Fatalf("cnitool %s: %v\n%s", verb, err, out)
	}
	return out
}

// toolPod is a pod whose container's name is the one that cnitool makes up.
func (n *node) toolPod(name string, annotations map[string]string) *pod {
	n.t.Helper()
	p := n.newPod(name)
	if out, err := n.cnitool("add", p, annotations); err != nil {
		n.t.Fatalf("cnitool add: %v\n%s", err, out)
	}
	entries, err := os.ReadDir(n.path("run/pods"))
	if err != nil {
		n.t.Fatal(err)
	}
	for _, e := range entries {
		f, err := podfile.Read(n.path("run/pods/" + e.Name()))
		if err != nil {
			n.t.Fatal(err)
		}
		if f.PodName == name {
			p.id = strings.TrimSuffix(e.Name(), "-eth0.json")
		}
	}
	return p
}

// TestCnitool drives the chain behind the reference plugins by the reference tool.
func TestCnitool(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			n := newNode(t, main, "cnitool, "+main, toolVersion(t))
			n.installer("install")
			n.startAgent()
			n.step(t, "pods steered, answered by the cache", n.testToolPods)
			n.step(t, "agent killed: kube-dns answers, then the cache again", n.testToolKilled)
			n.step(t, "pods come and go under load", n.testToolLoad)
			n.step(t, "opt-out by annotation", n.testToolOptOut)
			n.step(t, "CHECK right after ADD", n.testToolCheck)
			n.step(t, "GC", n.testToolGC)
			n.step(t, "STATUS", n.testToolStatus)
			n.step(t, "uninstalled under running pods", n.testToolUninstalled)
		})
	}
}

// toolVersion is the release of the reference plugins, which go.tool.mod pins.
func toolVersion(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../go.tool.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "github.com/containernetworking/plugins" {
			return strings.TrimPrefix(f[1], "v")
		}
	}
	t.Fatal("go.tool.mod has no reference plugins")
	return ""
}

func (n *node) testToolPods(t *testing.T) {
	p := n.toolPod("first", nil)
	p.wantState(podfile.Steered, "")
	f, err := p.file()
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Nameservers) != 2 || len(f.Searches) != 1 || len(f.Options) != 1 {
		t.Errorf("the dns capability gave %q, %q, %q", f.Nameservers, f.Searches, f.Options)
	}
	p.wantCached("a.cluster.local.")
	n.must("del", p)
	n.must("del", p) // as runtimes do
	n.wantFiles()
}

func (n *node) testToolKilled(*testing.T) {
	p := n.toolPod("killed", nil)
	p.wantCached("b.cluster.local.")
	n.killAgent()
	p.wantKubeDNS("c.cluster.local.")
	n.startAgent()
	p.wantCached("d.cluster.local.")
	n.must("del", p)
	n.wantFiles()
}

func (n *node) testToolLoad(t *testing.T) {
	asking := n.toolPod("asking", nil)
	end := asking.load()
	for i := range 4 {
		switch i {
		case 1:
			n.killAgent()
		case 3:
			n.startAgent()
		}
		p := n.toolPod(fmt.Sprintf("load-%d", i), nil)
		if name := fmt.Sprintf("e%d.cluster.local.", i); i == 1 || i == 2 {
			p.wantKubeDNS(name)
		} else {
			p.wantCached(name)
		}
		n.must("del", p)
	}
	asked, err := end()
	if err != nil || asked < 10 {
		t.Errorf("%d questions under way: %v", asked, err)
	}
	n.must("del", asking)
	n.wantFiles()
}

func (n *node) testToolOptOut(*testing.T) {
	p := n.toolPod("out", map[string]string{"neardns.io/steer": "false"})
	p.wantState(podfile.LeftAlone, "neardns.io/steer")
	p.wantKubeDNS("f.cluster.local.")
	n.must("del", p)
	n.wantFiles()
}

func (n *node) testToolCheck(t *testing.T) {
	p := n.toolPod("checked", nil)
	n.must("check", p)
	p.Run("nft", "delete", "table", "inet", "neardns")
	if out, err := n.cnitool("check", p, nil); err == nil {
		t.Errorf("CHECK without the pod's table is good:\n%s", out)
	}
	n.must("del", p)
	n.wantFiles()
}

// cnitool's GC names no valid attachments: it takes down all pods that the cache holds, by DEL, and ours must not take its call
// for one that says that none is valid.
func (n *node) testToolGC(t *testing.T) {
	p, q := n.toolPod("kept", nil), n.toolPod("forgotten", nil)
	if err := os.RemoveAll(n.path("lib/cni")); err != nil {
		t.Fatal(err)
	}
	n.must("gc", p)
	n.wantFiles(p.id, q.id)
	p.wantCached("g.cluster.local.")
	n.must("del", p)
	n.must("del", q)
	n.wantFiles()
	r := n.toolPod("cached", nil)
	n.must("gc", r)
	n.wantFiles()
}

func (n *node) testToolStatus(*testing.T) {
	p := n.newPod("none")
	n.must("status", p)
	n.killAgent()
	n.must("status", p)
	n.startAgent()
}

func (n *node) testToolUninstalled(t *testing.T) {
	p := n.toolPod("last", nil)
	n.installer("uninstall")
	n.agent.Signal(unix.SIGTERM)
	<-n.agent.Exited()
	n.Host.Run(program("neardns-agent"), "cleanup", "--config", n.path("node.yaml"))
	p.wantKubeDNS("h.cluster.local.")
	if out, err := n.Host.TryRun("", "nft", "list", "table", "inet", "neardns"); err == nil {
		t.Errorf("the host table is still there:\n%s", out)
	}
	n.must("del", p)
}

const macvlanLimit = "macvlan: the pod's packets leave by the uplink and never pass this host's netfilter; the pod is left alone, with this reason in its file, and asks kube-dns as without us"

// TestCnitoolMacvlan shows that such a pod is left alone, and works.
func TestCnitoolMacvlan(t *testing.T) {
	n := newNode(t, "macvlan", "cnitool, macvlan", toolVersion(t))
	n.installer("install")
	n.startAgent()
	n.limit(t, "pods steered, answered by the cache", macvlanLimit, func(t *testing.T) {
		p := n.toolPod("aside", nil)
		p.wantState(podfile.LeftAlone, "")
		f, err := p.file()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("the plugin's word: %s", f.Decisions[0].Reason)
		if out, err := p.TryRun("", "nft", "list", "table", "inet", "neardns"); err == nil {
			t.Errorf("the pod has a table of ours:\n%s", out)
		}
		p.wantKubeDNS("a.cluster.local.")
		n.must("del", p)
		n.wantFiles()
	})
	n.step(t, "CHECK right after ADD", func(*testing.T) {
		p := n.toolPod("checked", nil)
		n.must("check", p)
		n.must("del", p)
	})
	n.step(t, "GC", func(*testing.T) {
		p := n.toolPod("cached", nil)
		n.must("gc", p)
		n.wantFiles()
	})
	n.step(t, "STATUS", func(*testing.T) { n.must("status", n.newPod("none")) })
	n.step(t, "uninstalled under running pods", n.testToolUninstalled)
}
