package runtimes

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/integration/compat"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestRuntimes is the matrix: what happens to a chained plugin in a node's life, by each runtime. The steps are columns of a table in
// docs/reference/compatibility.md.
func TestRuntimes(t *testing.T) {
	for _, c := range releases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel() // each has a node, a folder and a control group of its own
			version, err := c.Version(t.Context())
			if err != nil {
				t.Fatalf("%v: make test-runtimes installs it", err)
			}
			version, _, _ = strings.Cut(version, "+") // built from a module, it knows no commit
			t.Logf("%s is %s", c.Name, version)
			n := newNode(t, c)
			n.row = []string{c.row, version}
			defer n.clean()
			n.step(t, "pods steered, answered by the cache", n.testPods)
			n.step(t, "agent killed: kube-dns answers, then the cache again", n.testKilled)
			n.step(t, "pods come and go under load", n.testLoad)
			n.step(t, "many pods at once", n.testMany)
			n.step(t, "opt-out by annotation", n.testOptOut)
			n.limit(t, "DEL after the list has vanished", "without a network the runtime calls no plugin and takes no pod down; once it has one again, the pod ends", n.testVanished)
			n.step(t, "runtime restarted", n.testRestart)
			n.step(t, "list rewritten, watch puts the entry back", n.testRewritten)
			if c.cni == "1.0.0" {
				n.limit(t, "entry in a drop-in folder", "its libcni is older than these folders and passes over them: pods are made without the plugin", n.testNoDropIn)
			} else {
				n.step(t, "STATUS", n.testStatus)
				n.step(t, "entry in a drop-in folder", n.testDropIn)
			}
			n.step(t, "node rebooted", n.testReboot)
			n.step(t, "uninstalled under running pods", n.testUninstalled)
		})
	}
}

// part is a subtest that the node belongs to. What fails in it stops it, and the next goes on with the same node.
func (n *node) part(t *testing.T, name string, f func(*testing.T)) {
	t.Run(name, func(t *testing.T) {
		whole := n.t
		defer func() {
			if t.Failed() && n.agent != nil {
				status, _ := n.Host.TryRun("", product("neardns-agent"), "status", "--config", n.path("node.yaml")) // 3 where degraded
				t.Logf("the agent's status and log:\n%s%s", status, n.agent.Output())
			}
			n.t, n.cri.t = whole, whole
		}()
		n.t, n.cri.t = t, t
		f(t)
	})
}

// step is a part of the matrix.
func (n *node) step(t *testing.T, column string, f func(*testing.T)) {
	n.limit(t, column, "", f)
}

// limit is a step that shows what does not work, and why.
func (n *node) limit(t *testing.T, column, why string, f func(*testing.T)) {
	n.part(t, column, func(t *testing.T) {
		compat.Record(t, compat.Cell{Table: "runtimes", Row: n.row, Column: column, Limit: why})
		f(t)
	})
}

func (n *node) mustRemove(pods ...*pod) {
	n.t.Helper()
	for _, p := range pods {
		testutil.Check(n.t, n.removePod(n.t.Context(), p.sandbox), "pod "+p.name)
	}
}

// A pod from before the installation is left as it is; later ones are steered and answered by the cache.
func (n *node) testPods(t *testing.T) {
	n.awaitNetwork()
	before := n.mustRunPod(n.spec("before"))
	n.install()
	n.startAgent()
	p := n.mustRunPod(n.spec("first"))
	n.wantState(p, podfile.Steered)
	if f := n.file(p); len(f.Nameservers) != 1 || f.Nameservers[0] != n.ClusterDNS()[0].String() || len(f.Searches) != 3 || len(f.Options) != 1 {
		t.Errorf("the runtime's dns capability gave %q, %q, %q", f.Nameservers, f.Searches, f.Options)
	}
	n.wantCached(p, "a.cluster.local")
	n.wantKubeDNS(before, "a.cluster.local")
	n.mustRemove(before, p)
	n.wantNoFiles(t)
}

func (n *node) killAgent() {
	n.agent.Signal(unix.SIGKILL)
	<-n.agent.Exited()
}

// Without an agent pods are answered by kube-dns, also those that start meanwhile.
func (n *node) testKilled(t *testing.T) {
	p := n.mustRunPod(n.spec("killed"))
	n.wantCached(p, "b1.cluster.local")
	n.killAgent()
	n.wantKubeDNS(p, "b2.cluster.local")
	q := n.mustRunPod(n.spec("meanwhile"))
	n.wantState(q, podfile.Pending)
	n.wantKubeDNS(q, "b2.cluster.local")
	n.startAgent()
	n.wantCached(p, "b3.cluster.local")
	n.wantCached(q, "b3.cluster.local")
	n.mustRemove(p, q)
	n.wantNoFiles(t)
}

// One pod queries all the time while others come and go and the agent dies and comes back: all of its queries are answered but those that
// were under way from the kill to the agent's end, and so are the first ones of each pod that comes.
func (n *node) testLoad(t *testing.T) {
	busy := n.mustRunPod(n.spec("asking"))
	end := n.asking(busy)
	var killed, ended time.Time
	for i := range 4 {
		switch i {
		case 1:
			killed = time.Now()
			n.killAgent()
			ended = time.Now()
		case 3:
			n.startAgent()
		}
		p := n.mustRunPod(n.spec(fmt.Sprintf("load-%d", i)))
		if name := fmt.Sprintf("c%d.cluster.local", i); i == 1 || i == 2 {
			n.wantState(p, podfile.Pending)
			n.wantKubeDNS(p, name)
		} else {
			n.wantState(p, podfile.Steered)
			n.wantCached(p, name)
		}
		n.mustRemove(p)
	}
	l, err := end()
	if err != nil || l.Asked < 50 || len(l.Wrong) > 0 {
		t.Errorf("the pod that asks all the time: %+v, %v", l, err)
	}
	for _, q := range l.Lost {
		if q.Ended.Before(killed) || q.Begun.After(ended) {
			t.Errorf("lost, though the agent was killed at %s and had ended at %s: %+v", killed, ended, q)
		}
	}
	n.mustRemove(busy)
	n.wantNoFiles(t)
}

func (n *node) wantNoFiles(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(n.stateDir(), "pods"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("left behind: %s", e.Name())
	}
}

// The annotation comes through the runtime's capability, and other nameservers through its dns one.
func (n *node) testOptOut(t *testing.T) {
	s := n.spec("out")
	s.annotations = map[string]string{"neardns.io/steer": "false"}
	p := n.mustRunPod(s)
	n.wantState(p, podfile.LeftAlone)
	n.wantKubeDNS(p, "d.cluster.local")
	own := n.spec("own")
	own.nameservers = []string{n.KubeDNSAddrs()[0].String()}
	q := n.mustRunPod(own)
	n.wantState(q, podfile.LeftAlone)
	n.wantKubeDNS(q, "d.cluster.local")
	n.mustRemove(p, q)
}

// A node that comes back starts all of its pods in the same moment.
func (n *node) testMany(t *testing.T) {
	const many = 50
	pods := make([]*pod, many)
	var wg sync.WaitGroup
	limit := make(chan struct{}, 10) // as the kubelet's own workers
	for i := range pods {
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			p, err := n.runPod(t.Context(), n.spec(fmt.Sprintf("many-%d", i)))
			if err != nil {
				t.Error(err)
				return
			}
			pods[i] = p
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, p := range pods {
		n.wantState(p, podfile.Steered)
	}
	for _, p := range []*pod{pods[0], pods[many/2], pods[many-1]} {
		n.wantCached(p, "many.cluster.local")
	}
	for i := range pods {
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			testutil.Check(t, n.removePod(t.Context(), pods[i].sandbox))
		})
	}
	wg.Wait()
	n.wantNoFiles(t)
}

// Pods outlive their runtime's restart, are answered meanwhile, and can be taken down by the new process.
func (n *node) testRestart(t *testing.T) {
	p := n.mustRunPod(n.spec("old"))
	n.stop()
	n.launch()
	n.awaitNetwork()
	n.wantCached(p, "e.cluster.local")
	q := n.mustRunPod(n.spec("new"))
	n.wantState(q, podfile.Steered)
	n.wantCached(q, "e.cluster.local")
	n.mustRemove(p, q)
	n.wantNoFiles(t)
}

// The main network writes its list again: pods made meanwhile are not steered and work, and `watch` brings the entry back.
func (n *node) testRewritten(t *testing.T) {
	old := n.mustRunPod(n.spec("kept"))
	n.writeNetwork()
	watch := n.Host.Start(product("neardns-install"), "watch", "--nodeconfig", n.path("node.yaml"), "--cni-bin", n.cniBin(), "--cni-conf", n.cniConf())
	testutil.Eventually(t, func() error {
		_, err := n.Host.TryRun("", product("neardns-install"), "check", "--nodeconfig", n.path("node.yaml"), "--cni-bin", n.cniBin(), "--cni-conf", n.cniConf())
		return err
	})
	// The runtime sees the file's change in its own time: pods made until then are right too, only not steered.
	testutil.Eventually(t, func() error {
		p, err := n.runPod(t.Context(), n.spec("again"))
		if err != nil {
			return err
		}
		defer n.mustRemove(p)
		if _, err := os.Stat(podfile.Path(n.stateDir(), p.sandbox, "eth0")); err != nil {
			return err
		}
		n.wantCached(p, "f.cluster.local")
		return nil
	})
	watch.Signal(unix.SIGTERM)
	<-watch.Exited()
	n.mustRemove(old)
	n.wantNoFiles(t)
}

// A reboot takes the pods' namespaces and all of /run, and the main network writes its list again before we come: the runtime's
// DEL of the pods from before must succeed, and new pods are steered once the agent is back.
func (n *node) testReboot(t *testing.T) {
	var pods []*pod
	for i := range 3 {
		pods = append(pods, n.mustRunPod(n.spec(fmt.Sprintf("boot-%d", i))))
	}
	n.killAgent()
	for _, p := range pods {
		testutil.Must(t, n.killSandbox(t, p))
	}
	n.Host.Run("nft", "delete", "table", "inet", "neardns")
	testutil.Must(t, os.RemoveAll(n.stateDir()))
	n.writeNetwork()
	n.stop()
	n.launch()
	n.awaitNetwork()
	n.mustRemove(pods...)
	window := n.mustRunPod(n.spec("window")) // before the installer: works, and is not steered
	n.wantKubeDNS(window, "g.cluster.local")
	n.install()
	early := n.mustRunPod(n.spec("early")) // before the agent
	n.wantState(early, podfile.Pending)
	n.wantKubeDNS(early, "g.cluster.local")
	n.startAgent()
	n.wantCached(early, "h.cluster.local")
	n.wantKubeDNS(window, "h.cluster.local")
	n.mustRemove(window, early)
	n.wantNoFiles(t)
}

// killSandbox ends a pod's processes and its netns behind the runtime's back.
func (n *node) killSandbox(t *testing.T, p *pod) error {
	t.Helper()
	f := n.file(p)
	for _, id := range []string{p.container, p.sandbox} {
		if _, err := n.Host.TryRun("", n.Program("ctr"), "--address", n.socket(), "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", id); err != nil {
			return err
		}
	}
	if err := unix.Unmount(f.NetNS, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", f.NetNS, err)
	}
	return os.Remove(f.NetNS)
}

// Taken out under running pods: each goes on, and each can be taken down afterwards, by the configuration that the runtime
// kept of it.
func (n *node) testUninstalled(t *testing.T) {
	p := n.mustRunPod(n.spec("last"))
	n.wantCached(p, "i.cluster.local")
	n.Host.Run(product("neardns-install"), "uninstall", "--cni-bin", n.cniBin(), "--cni-conf", n.cniConf())
	n.agent.Signal(unix.SIGTERM)
	<-n.agent.Exited()
	n.Host.Run(product("neardns-agent"), "cleanup", "--config", n.path("node.yaml"))
	n.wantKubeDNS(p, "j.cluster.local")
	if out, err := n.Host.TryRun("", "nft", "list", "table", "inet", "neardns"); err == nil {
		t.Errorf("the host table is still there:\n%s", out)
	}
	var list struct {
		Plugins []struct{ Type string }
	}
	text := testutil.ReadFile(t, n.path("net.d/10-main.conflist"))
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list.Plugins) != 1 {
		t.Errorf("%v, the list reads:\n%s", err, text)
	}
	n.mustRemove(p)
}
