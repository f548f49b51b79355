package callers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestCRIO takes a node that CRI-O runs through its life.
func TestCRIO(t *testing.T) {
	n := newNode(t, "ptp", "CRI-O's calls, by libcni", moduleVersion("github.com/containernetworking/cni"))
	c := newCRIO(n)
	n.step(t, "pods steered, answered by the cache", func(t *testing.T) { c.testPods(t) })
	n.step(t, "agent killed: kube-dns answers, then the cache again", func(t *testing.T) { c.testKilled(t) })
	n.step(t, "pods come and go under load", func(t *testing.T) { c.testLoad(t) })
	n.step(t, "50 pods at once", func(t *testing.T) { c.testMany(t) })
	n.step(t, "opt-out by annotation", func(t *testing.T) { c.testOptOut(t) })
	n.step(t, "CHECK right after ADD", func(t *testing.T) { c.testCheck(t) })
	n.step(t, "DEL after the list has vanished", func(t *testing.T) { c.testVanished(t) })
	n.step(t, "GC", func(t *testing.T) { c.testGC(t) })
	n.step(t, "STATUS", func(t *testing.T) { c.testStatus(t) })
	n.step(t, "list rewritten, watch puts the entry back", func(t *testing.T) { c.testRewritten(t) })
	n.limit(t, "entry in a drop-in folder", "the runtime takes a pod down by the list's own file: a plugin from the folder hears of it only by GC", func(t *testing.T) { c.testDropIn(t) })
	n.step(t, "node rebooted", func(t *testing.T) { c.testReboot(t) })
	n.step(t, "uninstalled under running pods", func(t *testing.T) { c.testUninstalled(t) })
}

func (c *crio) mustSetUp(name string) *pod {
	c.node.t.Helper()
	p := c.node.newPod(name)
	if err := c.setUp(p, nil); err != nil {
		c.node.t.Fatalf("pod %s: %v", name, err)
	}
	return p
}

func (c *crio) mustTearDown(pods ...*pod) {
	c.node.t.Helper()
	for _, p := range pods {
		if err := c.tearDown(p); err != nil {
			c.node.t.Errorf("pod %s: %v", p.name, err)
		}
	}
}

// A network whose plugin is missing is dropped, so the installer must not name ours before it is there; a pod from before is
// left as it is.
func (c *crio) testPods(t *testing.T) {
	n := c.node
	before := c.mustSetUp("before")
	main, err := os.ReadFile(n.list())
	if err != nil {
		t.Fatal(err)
	}
	early, err := conflist.Append(main, []byte(`{"type":"neardns","redirects":["10.96.0.10"]}`))
	if err != nil {
		t.Fatal(err)
	}
	n.write("net.d/10-main.conflist", string(early))
	if _, err := c.network(); err == nil || !strings.Contains(err.Error(), `failed to find plugin "neardns"`) {
		t.Errorf("a list with a plugin that is not there: %v", err)
	}
	n.write("net.d/10-main.conflist", string(main))
	n.installer("install")
	n.startAgent()
	p := c.mustSetUp("first")
	p.wantState(podfile.Steered, "")
	f, err := p.file()
	if err != nil {
		t.Fatal(err)
	}
	if f.PodName != "first" || f.PodNamespace != "shop" || len(f.Nameservers) > 0 {
		t.Errorf("the pod's file says %s/%s, nameservers %q", f.PodNamespace, f.PodName, f.Nameservers)
	}
	p.wantCached("a.cluster.local.")
	before.wantKubeDNS("a.cluster.local.")
	c.mustTearDown(before, p)
	n.wantFiles()
}

func (c *crio) testKilled(*testing.T) {
	n := c.node
	p := c.mustSetUp("killed")
	p.wantCached("b.cluster.local.")
	n.killAgent()
	p.wantKubeDNS("c.cluster.local.")
	q := c.mustSetUp("meanwhile") // no ADD waits for an agent
	q.wantState(podfile.Steered, "")
	q.wantKubeDNS("c.cluster.local.")
	n.startAgent()
	p.wantCached("d.cluster.local.")
	q.wantCached("d.cluster.local.")
	c.mustTearDown(p, q)
	n.wantFiles()
}

// One pod asks all the time while others come and go and the agent dies and comes back: each of its questions is answered, and
// so are the first ones of each pod that comes.
func (c *crio) testLoad(t *testing.T) {
	n := c.node
	asking := c.mustSetUp("asking")
	end := asking.load()
	for i := range 6 {
		switch i {
		case 2:
			n.killAgent()
		case 4:
			n.startAgent()
		}
		p := c.mustSetUp(fmt.Sprintf("load-%d", i))
		p.wantState(podfile.Steered, "")
		if name := fmt.Sprintf("e%d.cluster.local.", i); i == 2 || i == 3 {
			p.wantKubeDNS(name)
		} else {
			p.wantCached(name)
		}
		c.mustTearDown(p)
	}
	asked, err := end()
	if err != nil || asked < 10 {
		t.Errorf("%d questions under way: %v", asked, err)
	}
	t.Logf("%d questions under way", asked)
	c.mustTearDown(asking)
	n.wantFiles()
}

func (c *crio) testMany(t *testing.T) {
	n := c.node
	pods := make([]*pod, 50)
	for i := range pods {
		pods[i] = n.newPod(fmt.Sprintf("many-%d", i))
	}
	all := func(f func(*pod) error) {
		var wg sync.WaitGroup
		for _, p := range pods {
			wg.Go(func() {
				if err := f(p); err != nil {
					t.Errorf("pod %s: %v", p.name, err)
				}
			})
		}
		wg.Wait()
	}
	all(func(p *pod) error { return c.setUp(p, nil) })
	if t.Failed() {
		return
	}
	for _, p := range pods {
		p.wantState(podfile.Steered, "")
	}
	for _, p := range []*pod{pods[0], pods[25], pods[49]} {
		p.wantCached("many.cluster.local.")
	}
	all(c.tearDown)
	n.wantFiles()
}

func (c *crio) testOptOut(t *testing.T) {
	n := c.node
	p := n.newPod("out")
	if err := c.setUp(p, map[string]string{"neardns.io/steer": "false"}); err != nil {
		t.Fatal(err)
	}
	p.wantState(podfile.LeftAlone, "neardns.io/steer")
	p.wantKubeDNS("f.cluster.local.")
	c.mustTearDown(p)
	n.wantFiles()
}

// CHECK is asked at each start of a pod (setUp) and again when CRI-O starts; it must see what is really missing, and must not
// fail for an agent that is away.
func (c *crio) testCheck(t *testing.T) {
	n := c.node
	p := c.mustSetUp("checked")
	n.killAgent()
	if err := c.status(p); err != nil {
		t.Errorf("without an agent: %v", err)
	}
	n.startAgent()
	p.Run("nft", "delete", "table", "inet", "neardns")
	if err := c.status(p); err == nil || !strings.Contains(err.Error(), "neardns") {
		t.Errorf("without the pod's table: %v", err)
	}
	c.mustTearDown(p)
	n.wantFiles()
}

// The list goes, and with it what CRI-O would look up: the pod is taken down by what it was made with, main network included.
func (c *crio) testVanished(t *testing.T) {
	n := c.node
	p := c.mustSetUp("left")
	text, err := os.ReadFile(n.list())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(n.list()); err != nil {
		t.Fatal(err)
	}
	if err := c.ready(); err == nil {
		t.Error("a node without a network is ready")
	}
	c.mustTearDown(p)
	n.wantFiles()
	leases, err := filepath.Glob(n.path("ipam/" + n.network + "/1*"))
	if err != nil || len(leases) > 0 {
		t.Errorf("addresses that are still given away: %q, %v", leases, err)
	}
	n.write("net.d/10-main.conflist", string(text))
}

// CRI-O was away while pods ended: of one it still has the cache, of another not even that. Those that live keep all they have.
func (c *crio) testGC(t *testing.T) {
	n := c.node
	lives, gone, lost := c.mustSetUp("lives"), c.mustSetUp("gone"), c.mustSetUp("lost")
	n.wantFiles(lives.id, gone.id, lost.id)
	for _, p := range []*pod{gone, lost} {
		p.Close()
	}
	if err := c.forget(lost); err != nil {
		t.Fatal(err)
	}
	if err := c.gc(lives); err != nil {
		t.Fatal(err)
	}
	n.wantFiles(lives.id)
	if err := c.status(lives); err != nil {
		t.Error(err)
	}
	lives.wantCached("g.cluster.local.")
	if err := c.gc(); err != nil { // none lives: the list is empty, which is another thing than none given
		t.Fatal(err)
	}
	n.wantFiles()
}

// A cache that is away makes no node unready.
func (c *crio) testStatus(t *testing.T) {
	n := c.node
	for _, when := range []string{"agent up", "agent killed", "nothing of ours under /run"} {
		switch when {
		case "agent killed":
			n.killAgent()
		case "nothing of ours under /run":
			if err := os.RemoveAll(n.stateDir()); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.ready(); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	n.startAgent()
}

// The main network writes its list anew: a pod made meanwhile works, without us; the watch puts the entry back, and that pod can
// be taken down by a list that it was not made with, as well as by its own.
func (c *crio) testRewritten(t *testing.T) {
	n := c.node
	n.writeNetwork()
	between, unknown := c.mustSetUp("between"), c.mustSetUp("unknown")
	between.wantKubeDNS("h.cluster.local.")
	watch := n.Host.Start(program("neardns-install"), "watch", "--nodeconfig", n.path("node.yaml"), "--cni-bin", n.cniBin(), "--cni-conf", n.cniConf())
	testutil.Eventually(t, patience, func() error {
		_, err := n.Host.TryRun("", program("neardns-install"), "check", "--nodeconfig", n.path("node.yaml"), "--cni-bin", n.cniBin(), "--cni-conf", n.cniConf())
		return err
	})
	p := c.mustSetUp("again")
	p.wantCached("i.cluster.local.")
	between.wantKubeDNS("i.cluster.local.")
	if err := c.forget(unknown); err != nil {
		t.Fatal(err)
	}
	c.mustTearDown(between, unknown, p)
	watch.Signal(unix.SIGTERM)
	<-watch.Exited()
	n.wantFiles()
}

// The entry as a file of its own beside the list, as libcni 1.3 allows: ADD and CHECK know it, DEL by the cache does not.
func (c *crio) testDropIn(t *testing.T) {
	n := c.node
	n.installer("uninstall")
	entry := n.Host.Run(program("neardns-agent"), "config", "show", "--format", "conflist-entry", "--config", n.path("node.yaml"))
	folder := filepath.Join(n.cniConf(), n.network)
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	n.write(filepath.Join("net.d", n.network, "90-neardns.conf"), entry)
	list, err := c.network()
	if err != nil || len(list.Plugins) != 2 {
		t.Fatalf("the network with its folder: %+v, %v", list, err)
	}
	p := c.mustSetUp("dropped-in")
	p.wantState(podfile.Steered, "")
	p.wantCached("j.cluster.local.")
	c.mustTearDown(p)
	n.wantFiles(p.id) // DEL did not come
	if err := c.gc(); err != nil {
		t.Fatal(err)
	}
	n.wantFiles()
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	n.installer("install")
}

// A reboot takes the namespaces and all of /run; the cache stays, and the main network writes its list before we come.
func (c *crio) testReboot(t *testing.T) {
	n := c.node
	old := []*pod{c.mustSetUp("old-0"), c.mustSetUp("old-1")}
	n.killAgent()
	for _, p := range old {
		p.Close()
	}
	n.Host.Run("nft", "delete", "table", "inet", "neardns")
	if err := os.RemoveAll(n.stateDir()); err != nil {
		t.Fatal(err)
	}
	n.writeNetwork()
	if err := c.gc(); err != nil {
		t.Errorf("CRI-O's first call: %v", err)
	}
	window := c.mustSetUp("window") // before the installer
	window.wantKubeDNS("k.cluster.local.")
	n.installer("install")
	early := c.mustSetUp("early") // before the agent
	early.wantState(podfile.Steered, "")
	early.wantKubeDNS("k.cluster.local.")
	n.startAgent()
	early.wantCached("l.cluster.local.")
	window.wantKubeDNS("l.cluster.local.")
	c.mustTearDown(window, early)
	n.wantFiles()
}

// Taken out under a running pod: it goes on, and is taken down by the configuration that it was made with, which names us; the
// binary stays for that long.
func (c *crio) testUninstalled(t *testing.T) {
	n := c.node
	p := c.mustSetUp("last")
	p.wantCached("m.cluster.local.")
	remove := []string{program("neardns-install"), "uninstall", "--cni-bin", n.cniBin(), "--cni-conf", n.cniConf(), "--cni-cache", c.cache, "--remove-binary"}
	out, err := n.Host.TryRun("", remove...)
	if err == nil || !strings.Contains(out+err.Error(), "1 pods were made with it") || !strings.Contains(out+err.Error(), "shop/last") {
		t.Errorf("the binary is not held back: %v\n%s", err, out)
	}
	n.agent.Signal(unix.SIGTERM)
	<-n.agent.Exited()
	n.Host.Run(program("neardns-agent"), "cleanup", "--config", n.path("node.yaml"))
	p.wantKubeDNS("n.cluster.local.")
	if out, err := n.Host.TryRun("", "nft", "list", "table", "inet", "neardns"); err == nil {
		t.Errorf("the host table is still there:\n%s", out)
	}
	q := c.mustSetUp("later")
	q.wantKubeDNS("o.cluster.local.")
	c.mustTearDown(p, q)
	n.Host.Run(remove...)
	if _, err := os.Stat(filepath.Join(n.cniBin(), "neardns")); !os.IsNotExist(err) {
		t.Errorf("the binary is still there: %v", err)
	}
}
