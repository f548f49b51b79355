package callers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// caller is who calls the plugins of the node's list.
type caller interface {
	// id is the container's that it gives to a pod of that name and netns.
	id(name, netns string) string
	// setUp makes a pod's network, and tearDown ends it, by whatever verbs it takes.
	setUp(p *pod, annotations map[string]string) error
	tearDown(p *pod) error
}

func (n *node) mustSetUp(name string) *pod {
	n.t.Helper()
	p := n.newPod(name)
	if err := n.caller.setUp(p, nil); err != nil {
		n.t.Fatalf("pod %s: %v", name, err)
	}
	return p
}

func (n *node) mustTearDown(pods ...*pod) {
	n.t.Helper()
	for _, p := range pods {
		testutil.Check(n.t, n.caller.tearDown(p), "pod "+p.name)
	}
}

// What follows is tested for each caller.

// A pod from before the installation is left as it is; later ones are steered.
func (n *node) testPods(t *testing.T) {
	before := n.mustSetUp("before")
	n.installer("install")
	n.startAgent()
	p := n.mustSetUp("first")
	p.wantState(podfile.Steered, "")
	f, err := p.file()
	testutil.Must(t, err)
	if f.PodName != "first" || f.PodNamespace != "shop" {
		t.Errorf("the pod's file names %s/%s", f.PodNamespace, f.PodName)
	}
	p.wantCached("a.cluster.local.")
	before.wantKubeDNS("a.cluster.local.")
	n.mustTearDown(before, p, p) // twice, as runtimes do
	n.wantFiles()
}

func (n *node) testKilled(*testing.T) {
	p := n.mustSetUp("killed")
	p.wantCached("b.cluster.local.")
	n.killAgent()
	p.wantKubeDNS("c.cluster.local.")
	q := n.mustSetUp("meanwhile") // no ADD waits for an agent
	q.wantState(podfile.Pending, "not tried yet")
	q.wantKubeDNS("c.cluster.local.")
	n.startAgent()
	p.wantCached("d.cluster.local.")
	q.wantCached("d.cluster.local.")
	n.mustTearDown(p, q)
	n.wantFiles()
}

// One pod queries all the time while others come and go and the agent dies and comes back: all of its queries are answered but those that
// were under way from the kill to the agent's end, and so are the first ones of each pod that comes.
func (n *node) testLoad(t *testing.T) {
	asking := n.mustSetUp("asking")
	l := asking.load()
	var killed, ended int64
	for i := range 4 {
		switch i {
		case 1:
			killed = l.asked.Load()
			n.killAgent()
			ended = l.asked.Load()
		case 3:
			n.startAgent()
		}
		p := n.mustSetUp(fmt.Sprintf("load-%d", i))
		if name := fmt.Sprintf("e%d.cluster.local.", i); i == 1 || i == 2 {
			p.wantState(podfile.Pending, "not tried yet")
			p.wantKubeDNS(name)
		} else {
			p.wantState(podfile.Steered, "")
			p.wantCached(name)
		}
		n.mustTearDown(p)
	}
	testutil.Eventually(t, func() error {
		return testutil.ErrorIf(l.asked.Load() < ended+10, "%d queries have ended, %d of them before the agent", l.asked.Load(), ended)
	})
	l.end()
	for i, err := range l.lost {
		if (i < killed || i > ended) && !errors.Is(err, errSilent) || errors.Is(err, errWrong) || int64(len(l.lost)) > 20+l.asked.Load()/20 {
			t.Errorf("query %d, with the agent ending from %d to %d: %v", i, killed, ended, err)
		}
	}
	n.mustTearDown(asking)
	n.wantFiles()
}

func (n *node) testMany(t *testing.T) {
	pods := make([]*pod, 20)
	for i := range pods {
		pods[i] = n.newPod(fmt.Sprintf("many-%d", i))
	}
	all := func(f func(*pod) error) {
		var wg sync.WaitGroup
		for _, p := range pods {
			wg.Go(func() {
				testutil.Check(t, f(p), "pod "+p.name)
			})
		}
		wg.Wait()
	}
	all(func(p *pod) error { return n.caller.setUp(p, nil) })
	if t.Failed() {
		return
	}
	n.restartAgent()
	for _, p := range pods {
		p.wantState(podfile.Steered, "")
	}
	for _, p := range []*pod{pods[0], pods[10], pods[19]} {
		p.wantCached("many.cluster.local.")
	}
	all(n.caller.tearDown)
	n.wantFiles()
	n.restartAgent()
}

func (n *node) testOptOut(t *testing.T) {
	p := n.newPod("out")
	testutil.Must(t, n.caller.setUp(p, map[string]string{"neardns.io/steer": "false"}))
	p.wantState(podfile.LeftAlone, "neardns.io/steer")
	p.wantKubeDNS("f.cluster.local.")
	n.mustTearDown(p)
	n.wantFiles()
}

// The main network writes its list again: a pod made meanwhile works, without us; the watch puts the entry back, and that pod can
// be taken down by a list that it was not made with.
func (n *node) testRewritten(t *testing.T) {
	n.writeNetwork()
	between := n.mustSetUp("between")
	between.wantKubeDNS("h.cluster.local.")
	watch := n.Host.Start(made.Path("neardns-install"), "watch", "--nodeconfig", n.path("node.yaml"), "--cni-bin", n.cniBin(), "--cni-conf", n.cniConf())
	testutil.Eventually(t, func() error {
		_, err := n.Host.TryRun("", made.Path("neardns-install"), "check", "--nodeconfig", n.path("node.yaml"), "--cni-bin", n.cniBin(), "--cni-conf", n.cniConf())
		return err
	})
	p := n.mustSetUp("again")
	p.wantCached("i.cluster.local.")
	between.wantKubeDNS("i.cluster.local.")
	testutil.Must(t, n.forget(between))
	n.mustTearDown(between, p)
	watch.Signal(unix.SIGTERM)
	<-watch.Exited()
	n.wantFiles()
}

// A reboot takes the namespaces and all of /run; the cache stays, and the main network writes its list before we come.
func (n *node) testReboot(t *testing.T) {
	old := []*pod{n.mustSetUp("old-0"), n.mustSetUp("old-1")}
	n.killAgent()
	for _, p := range old {
		p.Close()
	}
	n.Host.Run("nft", "delete", "table", "inet", "neardns")
	testutil.Must(t, os.RemoveAll(n.stateDir()))
	n.writeNetwork()
	n.mustTearDown(old...)
	window := n.mustSetUp("window") // before the installer
	window.wantKubeDNS("k.cluster.local.")
	n.installer("install")
	early := n.mustSetUp("early") // before the agent
	early.wantState(podfile.Pending, "not tried yet")
	early.wantKubeDNS("k.cluster.local.")
	n.startAgent()
	early.wantCached("l.cluster.local.")
	window.wantKubeDNS("l.cluster.local.")
	n.mustTearDown(window, early)
	n.wantFiles()
}

// Taken out under a running pod: it goes on, and can be taken down.
func (n *node) testUninstalled(t *testing.T) {
	p := n.mustSetUp("last")
	n.installer("uninstall")
	n.agent.Signal(unix.SIGTERM)
	<-n.agent.Exited()
	n.Host.Run(made.Path("neardns-agent"), "cleanup", "--config", n.path("node.yaml"))
	p.wantKubeDNS("n.cluster.local.")
	if out, err := n.Host.TryRun("", "nft", "list", "table", "inet", "neardns"); err == nil {
		t.Errorf("the host table is still there:\n%s", out)
	}
	q := n.mustSetUp("later")
	q.wantKubeDNS("o.cluster.local.")
	n.mustTearDown(p, q)
}

// dropIn takes the entry out of the list and puts it into a file of its own next to it, as libcni 1.3 allows.
func (n *node) dropIn() (folder string) {
	n.t.Helper()
	n.installer("uninstall")
	folder = filepath.Join(n.cniConf(), n.network)
	testutil.Must(n.t, os.Mkdir(folder, 0o755))
	entry := n.Host.Run(made.Path("neardns-agent"), "config", "show", "--format", "conflist-entry", "--config", n.path("node.yaml"))
	n.write(filepath.Join("net.d", n.network, "90-neardns.conf"), entry)
	return folder
}

// forget loses a pod from libcni's cache, as when its disk did not survive what ended the pod.
func (n *node) forget(p *pod) error {
	return os.Remove(filepath.Join(n.cache(), "results", fmt.Sprintf("%s-%s-eth0", n.network, p.id)))
}
